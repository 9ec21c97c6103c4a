"""Whole columns of JSON text, the stuff envelopes are joined from.

Nothing here runs per row in Python: a batch's distinct tables, transactions and positions are
turned into text once, and Arrow spreads them over the rows.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.columns.json_strings import quoted
from airflow_provider_deltaforge.columns.value_codes import Codes, combinations

_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999

Piece: TypeAlias = "pa.BinaryArray | bytes"
"""A column of texts, or one text for every row. A null in a column is written as ``null``."""


def join(pieces: Sequence[Piece], row_count: int) -> pa.BinaryArray:
    """Concatenate the pieces of every row; at least one of them must be a column."""
    if not row_count:
        return pa.array([], pa.binary())
    return pc.binary_join_element_wise(
        *_merge_constants(pieces), b"", null_handling="replace", null_replacement=b"null"
    )


def json_text(value: str) -> bytes:
    """Return a string as JSON, with its quotes."""
    return orjson.dumps(value)


def json_texts(values: pa.Array) -> pa.BinaryArray:
    """Return each string of a column as JSON, with its quotes; null becomes ``null``."""
    return pc.fill_null(quoted(values.cast(pa.utf8())), b"null")


def integer_texts(values: pa.Array) -> pa.BinaryArray:
    """Return the digits of each integer; null stays null."""
    return values.cast(pa.utf8()).cast(pa.binary())


def has_rfc3339(ts_ms: pa.Int64Array) -> pa.BooleanArray:
    """Return which times have a year that RFC 3339 can write, from 1 to 9999."""
    return pc.and_(pc.greater_equal(ts_ms, _FIRST_MS), pc.less_equal(ts_ms, _LAST_MS))


def rfc3339_texts(ts_ms: pa.Int64Array) -> pa.BinaryArray:
    """Return ms since epoch as ``2023-11-14T22:13:20.000Z``, unquoted; see ``has_rfc3339``."""
    # A cast to text, unlike strftime with a zone, needs no time zone database on the machine.
    spaced = ts_ms.cast(pa.timestamp("ms")).cast(pa.utf8())
    with_t = pc.utf8_replace_slice(spaced, 10, 11, "T")
    return pc.binary_join_element_wise(with_t, "Z", "").cast(pa.binary())


def spread(texts: pa.BinaryArray, wanted: Codes) -> Piece:
    """Return ``texts[code]`` for every row; one constant when there is only one text."""
    if len(texts) == 1:
        return texts[0].as_py()
    return texts.take(pa.array(wanted))


def per_combination(
    columns: Sequence[pa.DictionaryArray | pa.BooleanArray], text: Callable[..., bytes]
) -> Piece:
    """Call ``text`` once for each combination of values that occurs, and spread the results.

    Args:
        columns: Of equal length; booleans are combined like any other value.
        text: Gets one value of each column, ``None`` for null.
    """
    combined, found = combinations(columns)
    return spread(pa.array([text(*values) for values in found], pa.binary()), combined)


def where_present(present: pa.BooleanArray, pieces: Sequence[Piece]) -> Piece:
    """Join the pieces in rows where ``present`` holds; the other rows get nothing."""
    true_count = present.true_count
    if not true_count:
        return b""
    pieces = _merge_constants(pieces)
    text = pieces[0] if len(pieces) == 1 else join(pieces, len(present))
    return text if true_count == len(present) else pc.if_else(present, text, b"")


def _merge_constants(pieces: Sequence[Piece]) -> list[Piece]:
    merged: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, bytes) and merged and isinstance(merged[-1], bytes):
            merged[-1] += piece
        else:
            merged.append(piece)
    return merged
