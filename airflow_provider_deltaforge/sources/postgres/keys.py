"""Rows of PostgreSQL by their keys: a key's JSON as SQL.

A literal that its column's type cannot read is an error of the whole query, so only values that it
surely can are written.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from airflow_provider_deltaforge.events.schema import Column, TableSchema
from airflow_provider_deltaforge.sources.contract import TableChunk
from airflow_provider_deltaforge.sources.postgres.tables import literal, quote
from airflow_provider_deltaforge.sources.shared.key_chunks import hex_of, key_chunk

_BITS = {"int2": 15, "int4": 31, "int8": 63}
_TEXTS = frozenset({"text", "varchar", "bpchar"})
_DAY = r"\d{4}-\d\d-\d\d"
_CLOCK = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?"
_FORMS = {
    "uuid": re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
    "numeric": re.compile(r"NaN|-?\d{1,131072}(\.\d{1,16383})?"),
    "date": re.compile(_DAY),
    "timestamp": re.compile(f"{_DAY}T{_CLOCK}"),
    "timestamptz": re.compile(f"{_DAY}T{_CLOCK}Z"),
}
_TIMES = frozenset({"date", "timestamp", "timestamptz"})
_PARTLY = _TIMES | {"numeric"}
"""Types that also have values without a form here: a year without four digits, an infinity."""


def chunk_of_keys(
    chunk: TableChunk, table: TableSchema, keys: Sequence[Mapping[str, Any]]
) -> TableChunk | None:
    """Return the chunk of the rows with these keys; see ``Source.chunk_of_keys``."""
    types = {column.name: column.udt_name or column.data_type for column in table.columns}
    known = {*_BITS, *_TEXTS, *_FORMS, "bytea", "bool"}
    if any(types[name] not in known for name in table.primary_key):
        return None
    for name in table.primary_key:
        form = _FORMS[types[name]] if types[name] in _PARTLY else None
        values = [key.get(name) for key in keys]
        if form and any(isinstance(value, str) and not form.fullmatch(value) for value in values):
            return None  # As a row that is not there it would be deleted where it is held.
    return key_chunk(chunk, table, keys, quote, _literal)


def _literal(column: Column, value: Any) -> str | None:
    kind = column.udt_name or column.data_type
    if kind == "bool" or isinstance(value, bool):
        fits = kind == "bool" and isinstance(value, bool)
        text = str(value).lower()
    elif kind in _BITS:
        fits = isinstance(value, int) and -(1 << _BITS[kind]) <= value < 1 << _BITS[kind]
        text = str(value)
    elif kind == "bytea":
        digits = None if isinstance(value, str) else hex_of(value)
        fits, text = digits is not None, f"\\x{digits}"
    else:
        text = str(value) if kind == "numeric" and isinstance(value, int) else value
        fits = hex_of(text) is not None and isinstance(text, str) and "\0" not in text
        fits = fits and (kind in _TEXTS or _is_form(kind, text))
    return literal(text) if fits else None


def _is_form(kind: str, text: str) -> bool:
    if not _FORMS[kind].fullmatch(text):
        return False
    try:
        return kind not in _TIMES or bool(date.fromisoformat(text[:10]))
    except ValueError:
        return False
