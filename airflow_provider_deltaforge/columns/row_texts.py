"""Whole columns of text, the stuff that envelopes and lines are joined from.

Nothing here runs per row in Python: a batch's distinct tables, transactions and positions are
turned into text once, and one kernel writes the rows.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.columns import row_text_kernel as kernel
from airflow_provider_deltaforge.columns.binary_columns import column_of
from airflow_provider_deltaforge.columns.json_strings import quoted
from airflow_provider_deltaforge.columns.value_codes import VARIED, combinations, only_value
from airflow_provider_deltaforge.errors import FatalError

_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999
_BYTES_MAX = 2**31 - 1 - kernel.ROOM
_FEW = 8
_INDEX_BITS = 32


class RowTexts(NamedTuple):
    """A text for each row."""

    numbers: tuple[int, ...]
    """What the kernel reads; see ``row_text_kernel``."""
    held: tuple[Any, ...] = ()
    """Whose memory that names."""


Piece: TypeAlias = "RowTexts | bytes"
"""A text for each row, or the same for all."""

_END = RowTexts(())


def join(pieces: Sequence[Piece], row_count: int) -> pa.BinaryArray:
    """Concatenate the pieces of every row.

    Raises:
        FatalError: a column cannot hold as much.
    """
    if not row_count:
        return pa.array([], pa.binary())
    numbers, held = _numbers(pieces)
    table = np.array(numbers, np.int64).reshape(-1, kernel.COLUMNS)
    size = int(kernel.size_of(table, row_count))
    if size > _BYTES_MAX:
        raise FatalError(
            f"{row_count} events of one batch take {size} bytes of JSON, more than a column can "
            "hold: lower batch.max_bytes, or leave the table with such rows out of 'tables'"
        )
    out = np.empty(size + kernel.ROOM, np.uint8)
    ends = np.empty(row_count + 1, np.int32)
    kernel.put_rows(out, ends, table, row_count)
    del held  # Until here.
    return column_of(out[: ends[-1]], ends)


@lru_cache(maxsize=4096)
def json_text(value: str) -> bytes:
    """Return a string as JSON, with its quotes."""
    return orjson.dumps(value)


def texts_of(values: pa.BinaryArray) -> Piece:
    """Return each row's own bytes, such as JSON; a null is written as ``null``."""
    if values.null_count == len(values):
        return b"null"
    valid, offsets, data = values.buffers()
    numbers = (
        kernel.COLUMN,
        _address(data),
        offsets.address,
        0,
        _valid(values, valid),
        values.offset,
        0,
    )
    return RowTexts(numbers, (values,))


def strings_of(values: pa.Array) -> Piece:
    """Return each string of a column as JSON, with its quotes; a null as ``null``."""
    return texts_of(quoted(values.cast(pa.utf8())))


def digits_of(values: pa.Array, plus: int = 0) -> RowTexts:
    """Return the digits of each int32 or int64 and ``plus``; a null as ``null``."""
    valid, data = values.buffers()
    kind = kernel.INT32 if pa.types.is_int32(values.type) else kernel.INT64
    place = (_valid(values, valid), values.offset)
    return RowTexts((kind, data.address, 0, 0, *place, plus), (values,))


def uuids_of(ids: pa.FixedSizeBinaryArray) -> RowTexts:
    """Return 16-byte ids as 36 characters each, without quotes; a null as ``null``."""
    valid, data = ids.buffers()
    return RowTexts((kernel.UUID, data.address, 0, 0, _valid(ids, valid), ids.offset, 0), (ids,))


def has_rfc3339(ts_ms: pa.Int64Array) -> pa.BooleanArray:
    """Return which times have a year that RFC 3339 can write, from 1 to 9999."""
    return pc.and_(pc.greater_equal(ts_ms, _FIRST_MS), pc.less_equal(ts_ms, _LAST_MS))


def rfc3339_texts(ts_ms: pa.Int64Array) -> pa.BinaryArray:
    """Return ms since epoch as ``2023-11-14T22:13:20.000Z``, unquoted; see ``has_rfc3339``."""
    # A cast to text, unlike strftime with a zone, needs no time zone database on the machine.
    spaced = ts_ms.cast(pa.timestamp("ms")).cast(pa.utf8())
    with_t = pc.utf8_replace_slice(spaced, 10, 11, "T")
    return pc.binary_join_element_wise(with_t, "Z", "").cast(pa.binary())


def chosen_from(texts: pa.BinaryArray, column: pa.DictionaryArray) -> Piece:
    """Return ``texts[number]`` for every row, where ``column`` has one number for each text.

    Args:
        texts: a null is written as ``null``; the one behind those of the dictionary, if there
            is one, is that of null rows.
        column: the numbers.
    """
    if texts.null_count:
        texts = pc.fill_null(texts, b"null")
    if len(texts) == 1 and not column.null_count:
        return bytes(texts[0].as_py())
    if column.type.index_type.bit_width != _INDEX_BITS:
        column = column.cast(pa.dictionary(pa.int32(), column.type.value_type))
    valid, numbers = column.buffers()
    return _choice(texts, numbers.address, _valid(column, valid), column.offset, column)


def per_combination(columns: Sequence[pa.DictionaryArray], text: Callable[..., bytes]) -> Piece:
    """Return ``text`` of each row's values, called once for each combination of values.

    Args:
        columns: Of equal length.
        text: Gets one value of each column, ``None`` for null; of a column with few different
            values it may also get some that no row has.
    """
    values = [only_value(column) for column in columns]
    varied = [at for at, value in enumerate(values) if value is VARIED]
    if not varied:
        return text(*values)
    [first, *others] = varied
    dictionary = columns[first].dictionary
    if others or len(dictionary) > max(_FEW, len(columns[first])):
        combined, found = combinations(columns)
        texts = pa.array([text(*each) for each in found], pa.binary())
        numbers = combined.astype(np.int32)
        return _choice(texts, numbers.__array_interface__["data"][0], 0, 0, numbers)
    every = [*dictionary.to_pylist(), None] if columns[first].null_count else dictionary.to_pylist()
    texts = [text(*values[:first], value, *values[first + 1 :]) for value in every]
    if not any(texts):
        return b""
    return chosen_from(pa.array(texts, pa.binary()), columns[first])


def where_present(column: pa.Array, pieces: Sequence[Piece]) -> list[Piece]:
    """Return pieces in rows where a column has a value; the other rows get nothing."""
    if column.null_count == len(column):
        return []
    if not column.null_count:
        return [*pieces]
    return _where(column.buffers()[0].address, column, pieces)


def where_true(wanted: pa.BooleanArray, pieces: Sequence[Piece]) -> list[Piece]:
    """Return pieces in rows where ``wanted``, none of it null, holds; the others get nothing."""
    true_count = wanted.true_count
    if not true_count:
        return []
    if true_count == len(wanted):
        return [*pieces]
    return _where(wanted.buffers()[1].address, wanted, pieces)


def _choice(texts: pa.BinaryArray, numbers: int, valid: int, first: int, held: Any) -> RowTexts:
    _, offsets, data = texts.buffers()
    begin = offsets.address + 4 * texts.offset  # A dictionary may be a slice of a longer one.
    of_null = len(texts) - 1
    return RowTexts(
        (kernel.CHOICE, _address(data), begin, numbers, valid, first, of_null), (texts, held)
    )


def _where(valid: int, column: pa.Array, pieces: Sequence[Piece]) -> list[Piece]:
    numbers, held = _numbers(pieces)
    left_out = len(numbers) // kernel.COLUMNS
    head = (kernel.WHERE, 0, 0, 0, valid, column.offset, left_out)
    return [RowTexts((*head, *numbers), (column, *held))]


def _numbers(pieces: Sequence[Piece]) -> tuple[list[int], list[Any]]:
    """Return what the kernel reads of pieces, and whose memory that names."""
    numbers: list[int] = []
    held: list[Any] = []
    constant = b""
    for piece in (*pieces, _END):
        if isinstance(piece, bytes):
            constant += piece
            continue
        if constant:
            text = pa.py_buffer(constant)
            numbers += (kernel.CONSTANT, text.address, 0, 0, 0, 0, len(constant))
            held.append(text)
            constant = b""
        numbers += piece.numbers
        held.append(piece)
    return numbers, held


def _valid(column: pa.Array, bits: pa.Buffer | None) -> int:
    return 0 if bits is None or not column.null_count else int(bits.address)


def _address(data: pa.Buffer | None) -> int:
    return 0 if data is None else int(data.address)
