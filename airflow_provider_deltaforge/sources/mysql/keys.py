"""Rows of MySQL by their keys: a key's JSON as SQL."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_deltaforge.events.schema import Column, TableSchema
from airflow_provider_deltaforge.sources.contract import TableChunk
from airflow_provider_deltaforge.sources.mysql.catalog import quote
from airflow_provider_deltaforge.sources.mysql.column_types import DATED
from airflow_provider_deltaforge.sources.shared.key_chunks import hex_of, key_chunk

_TIME = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d:\d\d(\.\d{1,6})?)?Z?")


def chunk_of_keys(
    chunk: TableChunk, table: TableSchema, keys: Sequence[Mapping[str, Any]]
) -> TableChunk:
    """Return the chunk of the rows with these keys; see ``Source.chunk_of_keys``."""
    return key_chunk(chunk, table, keys, quote, _literal)


def _literal(column: Column, value: Any) -> str | None:
    if isinstance(value, bool | int):
        return str(int(value))
    if isinstance(value, str) and column.data_type in DATED:
        # The session's time zone is UTC; a zone in the text the server may not read.
        return f"'{value.removesuffix('Z')}'" if _TIME.fullmatch(value) else None
    digits = hex_of(value)
    if digits is None:
        return None
    return f"_utf8mb4 X'{digits}'" if isinstance(value, str) else f"X'{digits}'"
