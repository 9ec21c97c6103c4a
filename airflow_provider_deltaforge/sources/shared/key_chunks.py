"""Chunks of chosen rows: those with certain keys, wherever in the table they are."""

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_deltaforge.events.schema import Column, TableSchema
from airflow_provider_deltaforge.sources.contract import TableChunk

Literal = Callable[[Column, Any], str | None]
"""Writes a key's value as SQL; None for one that the column cannot hold."""

_NO_ROW = "1 = 0"


def hex_of(value: Any) -> str | None:
    """Return the bytes of ``{"_base64": …}`` or of a text in hexadecimal; None for others."""
    try:
        if isinstance(value, str):
            return value.encode().hex()
        return base64.b64decode(value["_base64"], validate=True).hex()
    except (ValueError, TypeError, KeyError):  # Half a surrogate pair is a ValueError, too.
        return None


def key_chunk(
    chunk: TableChunk,
    table: TableSchema,
    keys: Sequence[Mapping[str, Any]],
    quote: Callable[[str], str],
    literal: Literal,
) -> TableChunk:
    """Return the chunk of the rows with these keys; see ``Source.chunk_of_keys``.

    Args:
        chunk: any chunk of the table.
        table: its schema.
        keys: as events hold them.
        quote: writes a name as SQL.
        literal: writes a value as SQL.
    """
    columns = {column.name: column for column in table.columns}
    wanted = [columns[name] for name in table.primary_key]
    conditions = []
    for key in keys:
        if set(key) != set(table.primary_key):
            continue
        values = [(column, literal(column, key[column.name])) for column in wanted]
        if all(value is not None for _, value in values):
            parts = [f"{quote(column.name)} = {value}" for column, value in values]
            conditions.append("(" + " AND ".join(parts) + ")")
    bounds = {name: value for name, value in chunk.bounds.items() if name not in ("after", "upto")}
    bounds["where"] = " OR ".join(conditions) or _NO_ROW
    return replace(chunk, bounds=bounds, rows_estimate=len(conditions))
