"""What every server's snapshot shares: which tables, the rows as events, errors of the driver."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.errors import DeltaForgeError, SpecError
from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA, ChangeBatch, Position
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.sources.contract import TableChunk
from airflow_provider_deltaforge.spec.patterns import TableMatcher

Table = TypeVar("Table")


@dataclass(frozen=True, slots=True)
class View:
    """What the rows of a chunk were read from.

    Attributes:
        cut: a position: everything up to here is in the view.
        ts_ms: the server's clock when the view opened, ms since epoch.
    """

    cut: Position
    ts_ms: int

    def after(self, tx: int) -> Position:
        """Return the cut: the rows of a view are one transaction."""
        return self.cut


class RowColumnsJson(NamedTuple):
    """Rows of a table as JSON.

    Attributes:
        after: binary.
        key: binary, None for a table without a key.
        event_ids: uint8 of shape (rows, 16).
    """

    after: pa.Array
    key: pa.Array | None
    event_ids: Any


def copied_rows(
    rows: RowColumnsJson,
    chunk: TableChunk,
    view: View,
    first: int,
    schema: TableSchema | None,
    connector: str,
) -> ChangeBatch:
    """Dress rows of a chunk as op ``r`` events.

    Args:
        rows: what was read.
        chunk: what they belong to.
        view: what they were read from.
        first: number of the chunk's rows before them.
        schema: of the table; None for one that is gone.
        connector: the source's name in events.
    """
    count = len(rows.after)
    last = np.zeros(count, np.bool_)
    last[-1:] = True
    columns: dict[str, pa.Array | None] = {
        "op": _repeated("r", count),
        "db": _repeated(chunk.db, count),
        "schema": None if chunk.schema is None else _repeated(chunk.schema, count),
        "table": _repeated(chunk.table, count),
        "after": rows.after,
        "key": rows.key,
        "ts_ms": pa.array(np.full(count, view.ts_ms, np.int64)),
        "tx": pa.array(np.zeros(count, np.int32)),
        "row": pa.array(np.arange(first, first + count, dtype=np.int32)),
        "tx_end": pa.array(last),
        "event_id": pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(16), count, [None, pa.py_buffer(rows.event_ids)]
        ),
        "schema_version": None if schema is None else _repeated(schema.fingerprint, count),
    }
    arrays = [columns.get(field.name) for field in CHANGE_SCHEMA]
    filled = [
        pa.nulls(count, field.type) if array is None else array
        for field, array in zip(CHANGE_SCHEMA, arrays, strict=True)
    ]
    dressed = pa.RecordBatch.from_arrays(filled, schema=CHANGE_SCHEMA)
    return ChangeBatch(
        rows=dressed,
        positions=view,
        end=view.cut,
        connector=connector,
        nbytes=dressed.nbytes,
        schemas=() if schema is None else (schema,),
    )


def chosen_tables(
    captured: Mapping[tuple[str, str], Table],
    patterns: Sequence[str],
    matcher: TableMatcher,
    check: str,
) -> list[Table]:
    """Return the captured tables that the patterns name; all of them without patterns.

    Args:
        captured: by qualifier and name.
        patterns: what is to be copied.
        matcher: the source's.
        check: what else a person should look at when a pattern names none.

    Raises:
        SpecError: a pattern names none of them.
    """
    if not patterns:
        return list(captured.values())
    chosen: set[tuple[str, str]] = set()
    for pattern in patterns:
        one = TableMatcher((pattern,), matcher.default, matcher.system)
        found = [name for name in captured if one.matches(*name)]
        if not found:
            raise SpecError(
                f"tables: {pattern!r} matches none of the captured tables; check the source's "
                f"'tables', and that {check}"
            )
        chosen.update(found)
    return [captured[name] for name in sorted(chosen, key=".".join)]


@contextlib.contextmanager
def driver_errors(
    doing: str,
    drivers: type[Exception],
    translated: Callable[[BaseException, str], DeltaForgeError],
    drop: Callable[[], None],
) -> Iterator[None]:
    """Turn a driver's errors into ours, and drop the connection that any error came from.

    Args:
        doing: what is tried, for the error's text.
        drivers: the base of the driver's errors.
        translated: turns them into ours.
        drop: closes the connection.
    """
    try:
        yield
    except GeneratorExit:
        raise
    except BaseException as error:
        drop()
        if isinstance(error, (drivers, OSError)) and not isinstance(error, DeltaForgeError):
            raise translated(error, doing) from error
        raise


def _repeated(text: str, count: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([text]))
