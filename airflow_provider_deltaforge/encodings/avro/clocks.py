"""Dates and times out of text, in whole columns; what does not fit is said, never guessed.

Texts are those that sources write: ``2024-02-29``, ``12:34:56.789``, ``2024-02-29T12:34:56.789Z``.
Years 1 to 9999 fit: what lies beyond, Avro can hold, but few readers can.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

DATE, SECONDS = 10, 8
"""How long the text of a date is, and that of a time without a fraction."""

_WIDEST = 29
_DAYS_IN_MONTH = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
_FRACTION = 6
_ZERO, _NINE = ord("0"), ord("9")


def days(texts: pa.StringArray) -> tuple[Any, Any]:
    """Return (days since 1970 as int64, whether each text is a date)."""
    letters, lengths = _letters(texts)
    number, good = _date(letters)
    return number, good & (lengths == DATE)


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
    time, good_time, length = _time(letters[:, DATE + 1 :], lengths - DATE - 1)
    rows = np.arange(len(letters))
    behind = letters[rows, np.clip(DATE + 1 + length, 0, letters.shape[1] - 1)]
    whole = lengths == DATE + 1 + length + (behind == ord("Z"))
    good = good_day & good_time & whole & (letters[:, DATE] == ord("T"))
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


def _number(letters: Any, begin: int, end: int) -> tuple[Any, Any]:
    """Return (the number that some letters make, whether they are digits)."""
    digits = letters[:, begin:end]
    powers = 10 ** np.arange(end - begin - 1, -1, -1)
    good = ((digits >= _ZERO) & (digits <= _NINE)).all(axis=1)
    return (digits.astype(np.int64) - _ZERO) @ powers, good


def _date(letters: Any) -> tuple[Any, Any]:
    (year, good), (month, good_month), (day, good_day) = (
        _number(letters, 0, 4),
        _number(letters, 5, 7),
        _number(letters, 8, 10),
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
        _number(letters, 0, 2),
        _number(letters, 3, 5),
        _number(letters, 6, 8),
    )
    good = good & good_minute & good_second & (lengths >= SECONDS)
    good &= (letters[:, 2] == ord(":")) & (letters[:, 5] == ord(":"))
    good &= (hour < 24) & (minute < 60) & (second < 60)
    fraction, length = np.zeros(len(letters), np.int64), np.full(len(letters), SECONDS)
    dotted = letters[:, SECONDS] == ord(".")
    if dotted.any():
        goes_on = dotted
        for place in range(_FRACTION):
            letter = letters[:, SECONDS + 1 + place].astype(np.int64)
            goes_on = goes_on & (letter >= _ZERO) & (letter <= _NINE)
            fraction += np.where(goes_on, (letter - _ZERO) * 10 ** (_FRACTION - 1 - place), 0)
            length += goes_on
        good &= ~dotted | (length > SECONDS)
        length += dotted
    return ((hour * 60 + minute) * 60 + second) * 1_000_000 + fraction, good, length
