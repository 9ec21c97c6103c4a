"""Rows of a Turso database or SQLite file by their keys: a key's JSON as SQL."""

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_deltaforge.events.schema import Column, TableSchema
from airflow_provider_deltaforge.sources.contract import TableChunk
from airflow_provider_deltaforge.sources.shared.key_chunks import hex_of, key_chunk
from airflow_provider_deltaforge.sources.turso.database import quoted

_INTEGER_BITS = 63


def chunk_of_keys(
    chunk: TableChunk, table: TableSchema, keys: Sequence[Mapping[str, Any]]
) -> TableChunk | None:
    """Return the chunk of the rows with these keys; see ``Source.chunk_of_keys``."""
    if not table.primary_key:
        return None
    return key_chunk(chunk, table, keys, quoted, _literal)


def _literal(_: Column, value: Any) -> str | None:
    if isinstance(value, int):
        fits = -(1 << _INTEGER_BITS) <= value < 1 << _INTEGER_BITS and not isinstance(value, bool)
        return str(value) if fits else None
    digits = hex_of(value)
    if digits is None:
        return None
    # A text may hold any byte; SQLite compares it as what it is stored as.
    return f"CAST(X'{digits}' AS TEXT)" if isinstance(value, str) else f"X'{digits}'"
