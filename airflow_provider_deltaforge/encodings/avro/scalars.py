"""Writers of whole columns: from JSON values to Avro's binary form.

A writer returns null for a value that is null, and for one that its type cannot hold.

Dates and times are read from the texts that sources write: ``2024-02-29``, ``12:34:56.789``,
``2024-02-29T12:34:56.789Z``. Years 1 to 9999 fit: what lies beyond, Avro can hold, but few readers
can.
"""

from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.columns.json_fields import ARRAY, BOOL, NUMBER, OBJECT, STRING
from airflow_provider_deltaforge.encodings.avro import binary
from airflow_provider_deltaforge.encodings.avro.values import Values, flags

Writer: TypeAlias = Callable[[Values], pa.BinaryArray]

_INT_BITS, _LONG_BITS = 32, 64
_DECIMAL = r"^[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d{1,2})?$"
_NO_DIGITS = r"^[+-]?0*|\.|[eE].*$"
_DIGITS_MAX = 38
_UUID = r"^[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$"
_DATE, _SECONDS = 10, 8
"""How long the text of a date is, and that of a time without a fraction."""

_WIDEST = 29
_DAYS_IN_MONTH = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
_FRACTION = 6
_ZERO, _NINE = ord("0"), ord("9")


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


def uuid(values: Values) -> pa.BinaryArray:
    """Write the texts of UUIDs; readers make values of them, and fail where they cannot."""
    good = flags(pc.match_substring_regex(values.text, _UUID))
    return binary.present(binary.texts(values.text), values.are(STRING) & good)


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
        good = values.are(STRING, NUMBER) & flags(pc.match_substring_regex(values.text, _DECIMAL))
        if (pc.max(pc.binary_length(values.text)).as_py() or 0) > _DIGITS_MAX:
            # Arrow makes another number of too many digits.
            digits = pc.binary_length(pc.replace_substring_regex(values.text, _NO_DIGITS, ""))
            good &= flags(pc.less_equal(digits, _DIGITS_MAX))
        numbers, fits = _decimals(_where(values.text, good), kind)
        halves = np.frombuffer(numbers.buffers()[1], np.uint64, 2 * len(numbers)).reshape(-1, 2)
        digits = binary.big_endian(halves[:, 0], halves[:, 1].view(np.int64))
        return binary.present(binary.texts(digits), good & fits)

    return write


def date(values: Values) -> pa.BinaryArray:
    """Write days since 1970 as ``int``."""
    return _clock(values, days, 1)


def time_millis(values: Values) -> pa.BinaryArray:
    """Write milliseconds since midnight as ``int``."""
    return _clock(values, times, 1000)


def time_micros(values: Values) -> pa.BinaryArray:
    """Write microseconds since midnight as ``long``."""
    return _clock(values, times, 1)


def timestamp_millis(values: Values) -> pa.BinaryArray:
    """Write milliseconds since 1970 as ``long``."""
    return _clock(values, instants, 1000)


def timestamp_micros(values: Values) -> pa.BinaryArray:
    """Write microseconds since 1970 as ``long``."""
    return _clock(values, instants, 1)


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


def days(texts: pa.StringArray) -> tuple[Any, Any]:
    """Return (days since 1970 as int64, whether each text is a date)."""
    letters, lengths = _letters(texts)
    number, good = _date(letters)
    return number, good & (lengths == _DATE)


def times(texts: pa.StringArray) -> tuple[Any, Any]:
    """Return (microseconds since midnight, whether each text is a time of one day)."""
    letters, lengths = _letters(texts)
    number, good, length = _time(letters, lengths)
    return number, good & (lengths == length)


def instants(texts: pa.StringArray) -> tuple[Any, Any]:
    """Return (microseconds since 1970, whether each text is a date and a time).

    A ``Z`` at the end changes nothing: a time without a zone counts as UTC.
    """
    letters, lengths = _letters(texts)
    day, good_day = _date(letters)
    time, good_time, length = _time(letters[:, _DATE + 1 :], lengths - _DATE - 1)
    rows = np.arange(len(letters))
    behind = letters[rows, np.clip(_DATE + 1 + length, 0, letters.shape[1] - 1)]
    whole = lengths == _DATE + 1 + length + (behind == ord("Z"))
    good = good_day & good_time & whole & (letters[:, _DATE] == ord("T"))
    return day * 86_400_000_000 + time, good


def _letters(texts: pa.StringArray) -> tuple[Any, Any]:
    """Return the texts' bytes as a matrix, blanks behind them, and their lengths."""
    count = len(texts)
    lengths = pc.fill_null(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False)
    fits = pa.array(lengths <= _WIDEST)
    padded = pc.ascii_rpad(pc.fill_null(pc.if_else(fits, texts, ""), ""), _WIDEST)
    data = np.frombuffer(padded.buffers()[2], np.uint8, count * _WIDEST) if count else b""
    return np.reshape(data, (count, _WIDEST)) if count else np.empty((0, _WIDEST), np.uint8), (
        np.where(lengths <= _WIDEST, lengths, 0)
    )


def _digits(letters: Any, begin: int, end: int) -> tuple[Any, Any]:
    """Return (the number that some letters make, whether they are digits)."""
    digits = letters[:, begin:end]
    powers = 10 ** np.arange(end - begin - 1, -1, -1)
    good = ((digits >= _ZERO) & (digits <= _NINE)).all(axis=1)
    return (digits.astype(np.int64) - _ZERO) @ powers, good


def _date(letters: Any) -> tuple[Any, Any]:
    (year, good), (month, good_month), (day, good_day) = (
        _digits(letters, 0, 4),
        _digits(letters, 5, 7),
        _digits(letters, 8, 10),
    )
    good = good & good_month & good_day & (letters[:, 4] == ord("-")) & (letters[:, 7] == ord("-"))
    good &= (year >= 1) & (month >= 1) & (month <= 12) & (day >= 1)
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    longest = _DAYS_IN_MONTH[np.clip(month, 0, 12)] + (leap & (month == 2))
    return _days_since_1970(year, month, day), good & (day <= longest)


def _days_since_1970(year: Any, month: Any, day: Any) -> Any:
    """Count days by years that begin in March, so that a leap day ends one."""
    year = year - (month <= 2)
    era = year // 400
    within = year - era * 400
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + within * 365 + within // 4 - within // 100 + of_year - 719_468


def _time(letters: Any, lengths: Any) -> tuple[Any, Any, Any]:
    """Return (microseconds, whether it is a time, how long its text is)."""
    (hour, good), (minute, good_minute), (second, good_second) = (
        _digits(letters, 0, 2),
        _digits(letters, 3, 5),
        _digits(letters, 6, 8),
    )
    good = good & good_minute & good_second & (lengths >= _SECONDS)
    good &= (letters[:, 2] == ord(":")) & (letters[:, 5] == ord(":"))
    good &= (hour < 24) & (minute < 60) & (second < 60)
    fraction, length = np.zeros(len(letters), np.int64), np.full(len(letters), _SECONDS)
    dotted = letters[:, _SECONDS] == ord(".")
    if dotted.any():
        goes_on = dotted
        for place in range(_FRACTION):
            letter = letters[:, _SECONDS + 1 + place].astype(np.int64)
            goes_on = goes_on & (letter >= _ZERO) & (letter <= _NINE)
            fraction += np.where(goes_on, (letter - _ZERO) * 10 ** (_FRACTION - 1 - place), 0)
            length += goes_on
        good &= ~dotted | (length > _SECONDS)
        length += dotted
    return ((hour * 60 + minute) * 60 + second) * 1_000_000 + fraction, good, length
