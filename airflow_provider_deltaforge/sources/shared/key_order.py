"""Which chunk a key is in, where only the server can tell which of two keys comes first."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from airflow_provider_deltaforge.sources.contract import TableChunk


@runtime_checkable
class OrdersKeys(Protocol):
    """A snapshotter that can ask the server which chunk a key is in."""

    def chunks_of(
        self, chunks: Sequence[TableChunk], keys: Sequence[Mapping[str, Any]]
    ) -> Sequence[int]:
        """Return which of a table's chunks each key is in; -1 where that cannot be told.

        The table itself need not be there any more, or as it was: what counts is the order by
        which its chunks were planned.

        Args:
            chunks: all of the table, in key order.
            keys: values by column, as events have them.

        Raises:
            RetryableError, AccessError, FatalError: the server was not asked.
        """


ToText = Callable[[Any], str | None]
"""Returns a key's value, of its JSON, as the server is given it; None of one that it is not."""

Sort = Callable[[Sequence[Sequence[str]], Sequence[Sequence[str]]], Sequence[int]]
"""Sorts keys, then bounds, in one statement; returns their numbers, equal keys before bounds."""


def chunks_of(
    chunks: Sequence[TableChunk],
    keys: Sequence[Mapping[str, Any]],
    bound_texts: Sequence[ToText],
    key_texts: Sequence[ToText],
    sort: Sort,
) -> list[int]:
    """Return which of a table's chunks each key is in; -1 where that cannot be told.

    Args:
        chunks: of the table, in key order.
        keys: values by column.
        bound_texts: by column, for the values of bounds.
        key_texts: by column, for the values of keys.
        sort: asks the server.
    """
    columns = chunks[0].bounds["columns"]
    bounds = [_texts(bound_texts, chunk.bounds["upto"]) for chunk in chunks[:-1]]
    wanted = [_texts(key_texts, [key.get(name) for name in columns]) for key in keys]
    known = [at for at, texts in enumerate(wanted) if texts is not None]
    found = [-1] * len(keys)
    if not known or any(texts is None for texts in bounds):
        return found
    rows = [texts for texts in wanted if texts is not None]
    passed = []
    for number in sort(rows, [texts for texts in bounds if texts is not None]):
        if number >= len(rows):
            passed.append(number - len(rows))
        else:
            found[known[number]] = len(passed)
    # Otherwise the server has another order by now.
    return found if passed == [*range(len(bounds))] else [-1] * len(keys)


def _texts(to_text: Sequence[ToText], values: Sequence[Any]) -> list[str] | None:
    texts = [convert(value) for convert, value in zip(to_text, values, strict=True)]
    whole = [text for text in texts if text is not None]
    return whole if len(whole) == len(texts) else None
