"""Writers of whole columns: from JSON values to Avro's binary form.

A writer returns null for a value that is null, and for one that its type cannot hold.
"""

from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.columns.json_fields import ARRAY, BOOL, NUMBER, OBJECT, STRING
from airflow_provider_deltaforge.encodings.avro import binary, clocks
from airflow_provider_deltaforge.encodings.avro.values import Values, flags

Writer: TypeAlias = Callable[[Values], pa.BinaryArray]

_INT_BITS, _LONG_BITS = 32, 64
_PLAIN_DECIMAL = r"^[+-]?\d+(?:\.\d+)?$"


def integer(bits: int) -> Writer:
    """Write ``int`` or ``long``."""
    least, most = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def write(values: Values) -> pa.BinaryArray:
        good = values.are(NUMBER)
        numbers, fits = _numbers(_where(values.text, good), pa.int64(), _int64)
        good = good & fits
        if bits < _LONG_BITS:
            good = good & (numbers >= least) & (numbers <= most)
        return binary.present(binary.integers(numbers), good)

    return write


int_ = integer(_INT_BITS)
long_ = integer(_LONG_BITS)


def string(values: Values) -> pa.BinaryArray:
    """Write texts; a number or a boolean is written as its text."""
    return binary.present(binary.texts(values.text), values.are(STRING, NUMBER, BOOL))


def json_text(values: Values) -> pa.BinaryArray:
    """Write each value's JSON text, every digit as it stands."""
    return binary.present(binary.texts(values.json), values.there & ~values.unchanged)


def boolean(values: Values) -> pa.BinaryArray:
    """Write booleans."""
    true = flags(pc.equal(values.json, b"true"))
    return binary.present(binary.booleans(true), values.are(BOOL))


def floating(width: type[np.floating[Any]]) -> Writer:
    """Write ``float`` or ``double``; NaN and the infinities come as texts."""

    def write(values: Values) -> pa.BinaryArray:
        good = values.are(NUMBER, STRING)
        numbers, fits = _numbers(_where(values.text, good), pa.float64(), _float64)
        with np.errstate(over="ignore"):
            narrow = numbers.astype(width)
        fits = fits & (np.isfinite(narrow) | (values.are(STRING) & ~np.isfinite(numbers)))
        return binary.present(binary.fixed(narrow), good & fits)

    return write


float_ = floating(np.float32)
double = floating(np.float64)


def decimal(precision: int, scale: int) -> Writer:
    """Write ``bytes`` with the logical type ``decimal``."""
    kind = pa.decimal128(precision, scale)

    def write(values: Values) -> pa.BinaryArray:
        plain = flags(pc.match_substring_regex(values.text, _PLAIN_DECIMAL))
        good = values.are(STRING, NUMBER) & plain
        numbers, fits = _decimals(_where(values.text, good), kind)
        halves = np.frombuffer(numbers.buffers()[1], np.uint64, 2 * len(numbers)).reshape(-1, 2)
        digits = binary.big_endian(halves[:, 0], halves[:, 1].view(np.int64))
        return binary.present(binary.texts(digits), good & fits)

    return write


def date(values: Values) -> pa.BinaryArray:
    """Write days since 1970 as ``int``."""
    return _clock(values, clocks.days, 1)


def time_millis(values: Values) -> pa.BinaryArray:
    """Write milliseconds since midnight as ``int``."""
    return _clock(values, clocks.times, 1000)


def time_micros(values: Values) -> pa.BinaryArray:
    """Write microseconds since midnight as ``long``."""
    return _clock(values, clocks.times, 1)


def timestamp_millis(values: Values) -> pa.BinaryArray:
    """Write milliseconds since 1970 as ``long``."""
    return _clock(values, clocks.instants, 1000)


def timestamp_micros(values: Values) -> pa.BinaryArray:
    """Write microseconds since 1970 as ``long``."""
    return _clock(values, clocks.instants, 1)


def enum(labels: tuple[str, ...]) -> Writer:
    """Write the index of a label."""
    known = pa.array(labels, pa.utf8())

    def write(values: Values) -> pa.BinaryArray:
        found = pc.index_in(values.text, value_set=known)
        good = values.are(STRING) & found.is_valid().to_numpy(zero_copy_only=False)
        numbers = pc.fill_null(found, 0).to_numpy(zero_copy_only=False)
        return binary.present(binary.integers(numbers), good)

    return write


def anything(values: Values) -> pa.BinaryArray:
    """Write ``null``, ``boolean``, ``long``, ``double``, ``string`` or the record ``Json``.

    Numbers that neither 64-bit type holds, lists and objects are their JSON text in the record.
    Nothing is null here: null is a branch of the union as well.
    """
    whole = values.are(NUMBER) & flags(pc.match_substring_regex(values.text, r"^-?\d+$"))
    numbers, fits = _numbers(_where(values.text, whole), pa.int64(), _int64)
    longs = binary.present(binary.integers(numbers), whole & fits)
    part = values.are(NUMBER) & ~whole
    numbers, fits = _numbers(_where(values.text, part), pa.float64(), _float64)
    part &= fits & np.isfinite(numbers)
    doubles = binary.present(
        binary.fixed(numbers), part & _kept_by_doubles(values.text, numbers, part)
    )
    strings = binary.present(binary.texts(values.text), values.are(STRING))
    wide = values.are(NUMBER) & ~_valid(longs) & ~_valid(doubles)
    rest = binary.present(binary.texts(values.json), values.are(OBJECT, ARRAY) | wide)
    branches = [boolean(values), longs, doubles, strings, rest]
    written = [
        pc.binary_join_element_wise(bytes([2 * (place + 1)]), column, b"")
        for place, column in enumerate(branches)
    ]
    return pc.coalesce(*written, pa.scalar(binary.NOTHING, pa.binary()))


def _kept_by_doubles(texts: pa.StringArray, numbers: Any, where: Any) -> Any:
    """Return which texts their doubles keep, to 17 digits; what is longer or too small is lost."""
    short = flags(pc.match_substring_regex(texts, r"^-?[\d.]{1,16}$"))
    kept = short.copy()
    for row in np.flatnonzero(where & ~short).tolist():
        written, number = Decimal(texts[row].as_py()), float(numbers[row])
        kept[row] = written in (Decimal(repr(number)), Decimal(f"{number:.17g}"))
    return kept


def _clock(values: Values, read: Callable[[pa.StringArray], Any], divisor: int) -> pa.BinaryArray:
    numbers, good = read(values.text)
    exact = numbers % divisor == 0
    return binary.present(binary.integers(numbers // divisor), values.are(STRING) & good & exact)


def _valid(column: pa.Array) -> Any:
    return column.is_valid().to_numpy(zero_copy_only=False)


def _where(texts: pa.StringArray, mask: Any) -> pa.StringArray:
    """Return the texts, null where the mask does not hold."""
    return texts if mask.all() else pc.if_else(pa.array(mask), texts, pa.scalar(None, pa.utf8()))


def _numbers(
    texts: pa.StringArray, kind: pa.DataType, convert: Callable[[str], Any]
) -> tuple[Any, Any]:
    """Return (numbers, whether each text is one); one by one where a whole column fails."""
    try:
        column = texts.cast(kind)
    except pa.ArrowInvalid:
        column = pa.array([None if t is None else convert(t) for t in texts.to_pylist()], kind)
    return pc.fill_null(column, 0).to_numpy(zero_copy_only=False), _valid(column)


def _int64(text: str) -> int | None:
    try:
        number = int(text)
    except ValueError:
        return None
    return number if -(1 << 63) <= number < 1 << 63 else None


def _float64(text: str) -> float | None:
    if "_" in text:  # Python's own way to write numbers.
        return None
    try:
        return float(text)
    except ValueError:
        return None


def _decimals(texts: pa.StringArray, kind: pa.DataType) -> tuple[pa.Decimal128Array, Any]:
    try:
        column = texts.cast(kind)
    except pa.ArrowInvalid:
        column = pa.concat_arrays([_decimal(text, kind) for text in texts] or [texts.cast(kind)])
    return pc.fill_null(column, pa.scalar(Decimal(0), kind)), _valid(column)


def _decimal(text: pa.StringScalar, kind: pa.DataType) -> pa.Decimal128Array:
    try:
        return pa.array([text.as_py()], pa.utf8()).cast(kind)
    except pa.ArrowInvalid:
        return pa.nulls(1, kind)
