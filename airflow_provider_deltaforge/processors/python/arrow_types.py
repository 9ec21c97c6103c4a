"""Names of types for columns of row images."""

import re

import pyarrow as pa

_DECIMAL = re.compile(r"decimal128\((\d+), ?(-?\d+)\)")
_NAMES = {
    "string": pa.string(),
    "json": pa.string(),
    "bool": pa.bool_(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint64": pa.uint64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamp_utc": pa.timestamp("us", "UTC"),
}


def arrow_type(name: str, text: str) -> pa.DataType:
    """Return the Arrow type that a document names for a column.

    Raises:
        ValueError: there is no such type.
    """
    decimal = _DECIMAL.fullmatch(text)
    try:
        return pa.decimal128(*map(int, decimal.groups())) if decimal else _NAMES[text]
    except (KeyError, ValueError):
        known = ", ".join((*_NAMES, "decimal128(12, 2)"))
        raise ValueError(f"column {name!r}: no type {text!r} (known: {known})") from None
