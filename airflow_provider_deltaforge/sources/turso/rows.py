"""Values to JSON text, the same in the snapshot and in every mode of the stream.

Integers keep every digit, REAL is the shortest text that reads back as the same number, text is a
string, a BLOB is ``{"_base64": …}``. JSON has no infinity: it is a string.
"""

import base64
import math
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from airflow_provider_deltaforge.sources.turso.tables import TursoTable


def row_json(table: TursoTable, values: Sequence[Any]) -> bytes:
    """Return a row as JSON text, columns in table order."""
    return _text(dict(zip(table.columns, values, strict=True)))


def key_json(table: TursoTable, values: Sequence[Any]) -> bytes | None:
    """Return the primary key of a row as JSON text; None for a table without one."""
    if not table.key_at:
        return None
    return _text({table.columns[at]: values[at] for at in table.key_at})


def nbytes_of(rows: Iterable[Sequence[Any]]) -> int:
    """Return about how many bytes rows have."""
    return sum(
        64 + sum(len(value) if isinstance(value, str | bytes) else 8 for value in row)
        for row in rows
    )


def _text(row: dict[str, Any]) -> bytes:
    text = orjson.dumps(row, default=_other)
    # orjson writes infinity as null, so only rows with a null need the slow look.
    if b"null" in text and any(type(v) is float and not math.isfinite(v) for v in row.values()):
        text = orjson.dumps({name: _finite(value) for name, value in row.items()}, default=_other)
    return text


def _other(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"_base64": base64.b64encode(value).decode()}
    raise TypeError


def _finite(value: Any) -> Any:
    if type(value) is float and not math.isfinite(value):
        if math.isnan(value):
            return "NaN"
        return "Infinity" if value > 0 else "-Infinity"
    return value
