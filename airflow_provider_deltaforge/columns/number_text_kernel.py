"""Kernels that append numbers and moments as text, eight digits at a time.

Buffers and offsets are those of ``json_text``.
"""

import numpy as np

from airflow_provider_deltaforge.columns.bytes_kernel import store_word, trailing_zeros
from airflow_provider_deltaforge.columns.json_text_kernel import QUOTE, kernel

_U8, _U16, _U32, _U56 = np.uint64(8), np.uint64(16), np.uint64(32), np.uint64(56)
_ZEROS = np.uint64(0x3030303030303030)
_E4, _E8, _E16 = np.uint64(10**4), np.uint64(10**8), np.uint64(10**16)
_LOW16, _LOW32 = np.uint64(0xFFFF), np.uint64(0xFFFFFFFF)


@kernel
def digits8(value):
    """Return the eight decimal digits of a uint64 below 1e8, one a byte, the first one lowest."""
    high = value // _E4
    pairs = high | ((value - high * _E4) << _U32)
    hundreds = ((pairs * np.uint64(10486)) >> np.uint64(20)) & np.uint64(0x7F0000007F)
    pairs = hundreds | ((pairs - hundreds * np.uint64(100)) << _U16)
    tens = ((pairs * np.uint64(103)) >> np.uint64(10)) & np.uint64(0x000F000F000F000F)
    return tens | ((pairs - tens * np.uint64(10)) << _U8)


@kernel
def put_uint(out, at, value):
    """Write an unsigned number; ``value`` is a uint64."""
    value = np.uint64(value)
    rest = np.uint64(0)
    pieces = 0
    if value >= _E16:
        high = value // _E16
        rest = value - high * _E16
        value = high
        pieces = 2
    elif value >= _E8:
        rest = value
        value = value // _E8
        rest = rest - value * _E8
        pieces = 1
    digits = digits8(value)
    skip = trailing_zeros(digits | (np.uint64(1) << _U56)) >> 3
    store_word(out, at, (digits | _ZEROS) >> np.uint64(8 * skip))
    at += 8 - skip
    if pieces == 2:
        high = rest // _E8
        store_word(out, at, digits8(high) | _ZEROS)
        at += 8
        rest = rest - high * _E8
    if pieces:
        store_word(out, at, digits8(rest) | _ZEROS)
        at += 8
    return at


@kernel
def put_int(out, at, value):
    """Write a signed number; ``value`` is an int64."""
    if value < 0:
        out[at] = 45
        # The two's complement of the lowest int64 is its own magnitude as uint64.
        return put_uint(out, at + 1, np.uint64(~np.int64(value)) + np.uint64(1))
    return put_uint(out, at, np.uint64(value))


@kernel
def put_padded(out, at, value, width):
    """Write a number from 0 to 4e9 with leading zeros, ``width`` (1 to 9) digits; more are cut."""
    left = np.uint64(np.uint32(value))
    high = left // _E8
    if width == 9:
        out[at] = np.uint64(48) + high % np.uint64(10)
        at += 1
        width = 8
    digits = digits8(left - high * _E8) | _ZEROS
    store_word(out, at, digits >> np.uint64(64 - 8 * width))
    return at + width


@kernel
def put_fraction(out, at, micros, digits):
    """Write ``.`` and the first ``digits`` (1 to 6) digits of a second's fraction; 0: nothing."""
    if digits == 0:
        return at
    out[at] = 46
    # Six digits at the end of eight, so the first of them is the third byte.
    store_word(out, at + 1, (digits8(np.uint64(np.uint32(micros)) % _E8) | _ZEROS) >> _U16)
    return at + 1 + digits


@kernel
def put_date(out, at, year, month, day):
    """Write ``YYYY-MM-DD`` without quotes; zero parts stay zeros."""
    number = np.uint64(np.uint32(year)) * _E4 + np.uint64(np.uint32(month * 100 + day))
    digits = digits8(number % _E8) | _ZEROS
    text = digits & _LOW32
    text |= ((digits >> _U32) & _LOW16) << np.uint64(40)
    store_word(out, at, text | np.uint64(0x2D00002D00000000))
    store_word(out, at + 8, digits >> np.uint64(48))
    return at + 10


@kernel
def put_clock(out, at, hour, minute, second):
    """Write ``HH:MM:SS`` without quotes; more than 99 hours take three digits."""
    number = np.uint64(np.uint32((hour * 100 + minute) * 100 + second))
    digits = digits8(number) | _ZEROS
    if hour > 99:
        out[at] = np.uint8((digits >> _U8) & np.uint64(0xFF))
        at += 1
    text = (digits >> _U16) & _LOW16
    text |= ((digits >> _U32) & _LOW16) << np.uint64(24)
    text |= (digits >> np.uint64(48)) << np.uint64(48)
    store_word(out, at, text | np.uint64(0x00003A00003A0000))
    return at + 8


@kernel
def civil_from_days(days):
    """Return (year, month, day) of a day counted from 1970-01-01, in the Gregorian calendar.

    After Neri and Schneider, "Euclidean affine functions and their application to calendar
    algorithms"; ``days`` is a uint64.
    """
    four = np.uint64(4)
    scaled = (days + np.uint64(719468)) * four + np.uint64(3)
    century = scaled // np.uint64(146097)
    of_century = (scaled - century * np.uint64(146097)) // four * four + np.uint64(3)
    product = of_century * np.uint64(2939745)
    day_of_year = (product & _LOW32) // np.uint64(2939745) // four
    months = day_of_year * np.uint64(2141) + np.uint64(197913)
    year = np.int64(century * np.uint64(100) + (product >> _U32))
    month = np.int64(months >> _U16)
    day = np.int64((months & _LOW16) // np.uint64(2141)) + 1
    if day_of_year >= np.uint64(306):
        return year + 1, month - 12, day
    return year, month, day


@kernel
def put_timestamp(out, at, seconds, micros, digits):
    """Write seconds since the epoch as ``"YYYY-MM-DDTHH:MM:SS[.f]Z"``; 0 is the zero date."""
    out[at] = QUOTE
    at += 1
    since = np.uint64(seconds)
    if seconds == 0 and micros == 0:
        at = put_date(out, at, 0, 0, 0)
    else:
        days = since // np.uint64(86400)
        year, month, day = civil_from_days(days)
        at = put_date(out, at, year, month, day)
        since -= days * np.uint64(86400)
    minutes = since // np.uint64(60)
    hours = minutes // np.uint64(60)
    out[at] = 84
    second = np.int64(since - minutes * np.uint64(60))
    at = put_clock(out, at + 1, np.int64(hours), np.int64(minutes) - 60 * np.int64(hours), second)
    at = put_fraction(out, at, micros, digits)
    out[at] = 90
    out[at + 1] = QUOTE
    return at + 2
