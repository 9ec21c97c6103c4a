"""Cuts a table into chunks: half-open ranges ``(after, upto]`` of its key.

The first chunk has no ``after``, the last no ``upto``, so together they hold every key there is or
will be. A border is a key of the table, about so many rows behind the one before: sparse keys make
no empty chunks, and comparing is the server's.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from airflow_provider_deltaforge.errors import SchemaError
from airflow_provider_deltaforge.events.table_names import qualified_name
from airflow_provider_deltaforge.sources.contract import TableChunk

Border = Sequence[Any]
"""One value per key column, in a form that JSON can hold."""


def checks_of(where: str, source: str) -> Sequence[str]:
    """Return the statements that a server takes both if a text is one condition, and else does not.

    The first has the text in parentheses, as the chunks' statements do; one that closes them, as
    ``id > 9) OR (true``, would undo the chunk's own bounds. Where the second has it there is no
    parenthesis to close. Lines of their own end a comment at the text's end.

    Args:
        where: the text.
        source: what to SELECT from.
    """
    return (
        f"SELECT 1 FROM {source} WHERE {enclosed(where)} LIMIT 0",
        f"SELECT CASE WHEN\n{where}\nTHEN 1 END FROM {source} LIMIT 0",
    )


def enclosed(where: str) -> str:
    """Return a condition in parentheses, also one that ends in a comment."""
    return f"(\n{where}\n)"


@runtime_checkable
class SplitsChunks(Protocol):
    """A snapshotter that can split a chunk."""

    def is_splittable(self, chunk: TableChunk) -> bool:
        """Return whether a chunk is a range of keys."""

    def split(self, chunk: TableChunk, rows: int) -> Sequence[TableChunk]:
        """Return chunks of about so many rows that together are a chunk, in key order.

        One that cannot be split is returned alone.

        Raises:
            SchemaError: what the chunk was cut by changed since it was planned.
            RetryableError: the server is away.
        """


@dataclass(frozen=True, slots=True)
class TableRange:
    """What all chunks of a table share.

    Attributes:
        db: name of the database.
        schema: of the table; None where the source has none.
        table: its name.
        key: what the chunks are cut by, and what must not change until they are read.
        where: SQL condition that the chunks' rows must fulfil as well.
    """

    db: str
    schema: str | None
    table: str
    key: Mapping[str, Sequence[str]]
    where: str | None = None

    def chunks(self, borders: Iterable[Border], rows: int) -> Iterator[TableChunk]:
        """Yield the chunks between borders, at least one.

        Args:
            borders: in key order; taken one by one.
            rows: about how many rows a chunk has.
        """
        after: Border | None = None
        for upto in borders:
            yield self._chunk(after, upto, rows)
            after = upto
        yield self._chunk(after, None, rows)

    def _chunk(self, after: Border | None, upto: Border | None, rows: int) -> TableChunk:
        """Return a chunk; its id is the same whenever the same range is planned again."""
        bounds: dict[str, Any] = {name: list(values) for name, values in self.key.items()}
        if after is not None:
            bounds["after"] = list(after)
        if upto is not None:
            bounds["upto"] = list(upto)
        if self.where:
            bounds["where"] = self.where
        name = qualified_name(self.schema or self.db, self.table)
        text = json.dumps([self.db, name, bounds], sort_keys=True, ensure_ascii=False)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        return TableChunk(f"{name}:{digest}", self.db, self.schema, self.table, bounds, rows)


def sampled(border_after: Callable[[Border | None], Border | None]) -> Iterator[Border]:
    """Yield borders until there is none behind the last one.

    Args:
        border_after: returns the border behind another one, or the first behind None.
    """
    border = border_after(None)
    while border is not None:
        yield border
        border = border_after(border)


def split_at(chunk: TableChunk, borders: Iterable[Border], rows: int) -> Sequence[TableChunk]:
    """Return the parts of a chunk between borders.

    Args:
        chunk: what is split.
        borders: in it, in key order.
        rows: about how many rows a part has.
    """
    after, upto = chunk.bounds.get("after"), chunk.bounds.get("upto")
    inner = [[*border] for border in borders]
    inner = [border for border in inner if upto is None or border != [*upto]]
    if not inner:
        return [chunk]
    rest = {name: value for name, value in chunk.bounds.items() if name not in ("after", "upto")}
    parts = []
    for at, (low, high) in enumerate(zip([after, *inner], [*inner, upto], strict=True)):
        edges = {"after": low, "upto": high}
        bounds = rest | {name: edge for name, edge in edges.items() if edge is not None}
        parts.append(replace(chunk, id=f"{chunk.id}-{at}", bounds=bounds, rows_estimate=rows))
    return parts


def check_key(name: str, planned: Mapping[str, Any], now: Mapping[str, Sequence[str]]) -> None:
    """Refuse a chunk whose borders do not lie in the key's order any more.

    Args:
        name: of the table.
        planned: the chunk's bounds.
        now: ``TableRange.key`` as the table is now.

    Raises:
        SchemaError: what the chunks were cut by changed since then.
    """
    if any(list(planned.get(part, ())) != list(values) for part, values in now.items()):
        raise SchemaError(
            f"{name}: the key changed since its chunks were planned; start a new snapshot run"
        )
