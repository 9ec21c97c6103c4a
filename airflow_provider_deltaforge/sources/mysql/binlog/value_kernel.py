"""Kernels from one binlog value to its JSON text."""

import numpy as np

from airflow_provider_deltaforge.columns.bytes_kernel import load_word, swapped
from airflow_provider_deltaforge.columns.json_text_kernel import (
    QUOTE,
    kernel,
    put_bool,
    put_code_point,
    put_string,
    put_words,
)
from airflow_provider_deltaforge.columns.number_text_kernel import (
    put_clock,
    put_date,
    put_fraction,
    put_padded,
    put_timestamp,
    put_uint,
)
from airflow_provider_deltaforge.sources.mysql.charsets import (
    ASCII_AS_IS,
    FOUR_BYTES_ASTRAL,
    FOUR_BYTES_END,
    GB18030,
    HALF,
    NOT_A_CHARACTER,
    ONE_BYTE,
    PAIRS,
    THIRD,
    UJIS,
    UNREADABLE,
    UTF8,
    UTF16,
    UTF16_LITTLE,
    UTF32,
)

_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_HIGH_BITS = np.uint64(0x8080808080808080)
_THIRTEEN = np.uint64(13)


# A value's last byte ends a word that begins in the value or before it, where the event's header
# lies: so words can be read everywhere, and none of them reaches behind the log's bytes.


@kernel
def low(src, at, size):
    """Return ``size`` (1 to 8) bytes at ``at`` as a little-endian number without a sign."""
    return load_word(src, at + size - 8) >> np.uint64(64 - 8 * size)


@kernel
def big(src, at, size):
    """Return ``size`` (1 to 8) bytes at ``at`` as a big-endian int64."""
    shift = np.uint64(64 - 8 * size)
    return np.int64((swapped(load_word(src, at + size - 8)) << shift) >> shift)


@kernel
def _decimal_part(src, at, size, first, negative):
    """Return one group of a packed decimal; the very first byte has its sign bit turned."""
    shift = np.uint64(64 - 8 * size)
    value = (swapped(load_word(src, at + size - 8)) << shift) >> shift
    if first:
        value ^= np.uint64(1) << np.uint64(8 * size - 1)
    return value ^ (_ALL >> shift) if negative else value


@kernel
def put_decimal(out, at, src, pos, precision, scale):
    """Write a packed decimal without quotes: sign, digits without leading zeros, full scale."""
    negative = (src[pos] & 0x80) == 0
    begin = at
    if negative:
        out[at] = 45
        at += 1
    whole = precision - scale
    width = whole % 9
    first = True
    started = False
    nonzero = False
    groups = whole // 9 + (1 if width else 0)
    for group in range(groups):
        digits = width if width and group == 0 else 9
        size = min((digits + 1) >> 1, 4)
        value = _decimal_part(src, pos, size, first, negative)
        pos += size
        first = False
        if started:
            at = put_padded(out, at, value, 9)
        elif value:
            at = put_uint(out, at, value)
            started = True
    if not started:
        out[at] = 48
        at += 1
    nonzero = started
    if scale == 0:
        return at if nonzero or not negative else put_uint(out, begin, np.uint64(0))
    out[at] = 46
    at += 1
    left = scale
    while left > 0:
        digits = min(left, 9)
        size = min((digits + 1) >> 1, 4)
        value = _decimal_part(src, pos, size, first, negative)
        first = False
        pos += size
        at = put_padded(out, at, value, digits)
        nonzero = nonzero or value != 0
        left -= digits
    if negative and not nonzero:  # there is no negative zero
        at -= 1
        for i in range(begin, at):
            out[i] = out[i + 1]
    return at


@kernel
def fraction_size(digits):
    """Return the bytes behind a temporal value that hold its fraction."""
    return (digits + 1) // 2


@kernel
def _micros(src, pos, digits):
    if digits == 0:
        return np.int64(0)
    value = big(src, pos, (digits + 1) // 2)
    if digits <= 2:
        return value * 10000
    return value * 100 if digits <= 4 else value


@kernel
def put_time(out, at, src, pos, digits):
    """Write a TIME as ``"[-]HH:MM:SS[.f]"``."""
    size = fraction_size(digits)
    value = big(src, pos, 3 + size) - (np.int64(0x800000) << (8 * size))
    out[at] = QUOTE
    at += 1
    if value < 0:
        value = -value
        out[at] = 45
        at += 1
    clock = value >> (8 * size)
    part = value & ((np.int64(1) << (8 * size)) - 1)
    micros = part * 10000 if size == 1 else (part * 100 if size == 2 else part)
    at = put_clock(out, at, (clock >> 12) & 1023, (clock >> 6) & 63, clock & 63)
    at = put_fraction(out, at, micros, digits)
    out[at] = QUOTE
    return at + 1


@kernel
def put_datetime(out, at, src, pos, digits):
    """Write a DATETIME as ``"YYYY-MM-DDTHH:MM:SS[.f]"``."""
    value = big(src, pos, 5) - np.int64(0x8000000000)
    date = value >> 17
    months = date >> 5
    year = np.int64(np.uint64(months) // _THIRTEEN)
    out[at] = QUOTE
    at = put_date(out, at + 1, year, months - 13 * year, date & 31)
    out[at] = 84
    at = put_clock(out, at + 1, (value >> 12) & 31, (value >> 6) & 63, value & 63)
    at = put_fraction(out, at, _micros(src, pos + 5, digits), digits)
    out[at] = QUOTE
    return at + 1


@kernel
def put_timestamp2(out, at, src, pos, digits):
    """Write a TIMESTAMP as ``"YYYY-MM-DDTHH:MM:SS[.f]Z"``."""
    return put_timestamp(out, at, big(src, pos, 4), _micros(src, pos + 4, digits), digits)


@kernel
def put_day(out, at, src, pos):
    """Write a DATE as ``"YYYY-MM-DD"``."""
    value = np.int64(low(src, pos, 3))
    out[at] = QUOTE
    at = put_date(out, at + 1, value >> 9, (value >> 5) & 15, value & 31)
    out[at] = QUOTE
    return at + 1


@kernel
def put_old_datetime(out, at, src, pos):
    """Write a DATETIME of before MySQL 5.6, whose decimal digits are YYYYMMDDhhmmss."""
    value = np.int64(low(src, pos, 8))
    date, clock = value // 1000000, value % 1000000
    out[at] = QUOTE
    at = put_date(out, at + 1, date // 10000, date // 100 % 100, date % 100)
    out[at] = 84
    at = put_clock(out, at + 1, clock // 10000, clock // 100 % 100, clock % 100)
    out[at] = QUOTE
    return at + 1


@kernel
def put_old_time(out, at, src, pos):
    """Write a TIME of before MySQL 5.6, whose decimal digits are [-]hhmmss."""
    value = np.int64(low(src, pos, 3))
    if value >= 0x800000:
        value -= 0x1000000
    out[at] = QUOTE
    at += 1
    if value < 0:
        out[at] = 45
        at += 1
        value = -value
    at = put_clock(out, at, value // 10000, value // 100 % 100, value % 100)
    out[at] = QUOTE
    return at + 1


@kernel
def put_bits(out, at, src, pos, bits):
    """Write BIT(1) as a boolean and wider ones as an unsigned number."""
    if bits == 1:
        return put_bool(out, at, src[pos] & 1)
    return put_uint(out, at, np.uint64(big(src, pos, (bits + 7) // 8)))


@kernel
def put_set(out, at, mask, labels, offsets, first, count):
    """Write a SET's labels, joined by commas. Labels are already escaped."""
    out[at] = QUOTE
    at += 1
    some = False
    for i in range(count):
        if (mask >> np.uint64(i)) & np.uint64(1):
            if some:
                out[at] = 44
                at += 1
            at = put_words(out, at, labels, offsets[first + i], offsets[first + i + 1])
            some = True
    out[at] = QUOTE
    return at + 1


@kernel
def put_uuid(out, at, src, pos, stop):
    """Write a MariaDB UUID as text; the log has it in written order, without zeros at its end."""
    out[at] = QUOTE
    at += 1
    for i in range(16):
        if i in (4, 6, 8, 10):
            out[at] = 45
            at += 1
        byte = src[pos + i] if pos + i < stop else np.uint8(0)
        out[at] = _HEX[byte >> 4]
        out[at + 1] = _HEX[byte & 15]
        at += 2
    out[at] = QUOTE
    return at + 1


@kernel
def _several(table, first, src, pos, stop, method):
    """Return (code point, bytes taken) of a character with a table of byte pairs."""
    lead = np.int64(src[pos])
    code = np.int64(table[first + lead])
    if code != NOT_A_CHARACTER:
        return code, 1
    if pos + 1 >= stop:
        return np.int64(UNREADABLE), 1
    trail = np.int64(src[pos + 1])
    size = 2
    code = np.int64(table[first + PAIRS + ((lead << 8) | trail)])
    if method == UJIS and lead == 0x8F and pos + 2 < stop:
        code = np.int64(table[first + THIRD + ((trail << 8) | np.int64(src[pos + 2]))])
        size = 3
    elif method == GB18030 and 0x30 <= trail <= 0x39 and pos + 3 < stop:
        code = _four_bytes(table, first, src, pos)
        size = 4
    if code == NOT_A_CHARACTER:
        return np.int64(UNREADABLE), 1
    return code, size


@kernel
def _four_bytes(table, first, src, pos):
    index = ((np.int64(src[pos]) - 0x81) * 10 + np.int64(src[pos + 1]) - 0x30) * 1260
    index += (np.int64(src[pos + 2]) - 0x81) * 10 + np.int64(src[pos + 3]) - 0x30
    if 0 <= index < FOUR_BYTES_END:
        return np.int64(table[first + THIRD + index])
    if FOUR_BYTES_ASTRAL <= index < FOUR_BYTES_ASTRAL + 0x100000:
        return index - FOUR_BYTES_ASTRAL + 0x10000
    return np.int64(UNREADABLE)


@kernel
def _is_ascii(src, pos, stop):
    while stop - pos >= 8:
        if load_word(src, pos) & _HIGH_BITS:
            return False
        pos += 8
    while pos < stop:
        if src[pos] >= 0x80:
            return False
        pos += 1
    return True


@kernel
def put_text(out, at, src, pos, stop, charset, tables):
    """Write text as a JSON string; ``charset`` is a method and, above 8 bits, its table."""
    method = charset & 0x7F
    if method == UTF8 or (charset & ASCII_AS_IS and _is_ascii(src, pos, stop)):
        return put_string(out, at, src, pos, stop)
    if method in (UTF16, UTF16_LITTLE, UTF32):
        return put_wide(out, at, src, pos, stop, method)
    first = charset >> 8
    out[at] = QUOTE
    at += 1
    while pos < stop:
        if method == ONE_BYTE:
            code = np.int64(tables[first + src[pos]])
            size = 1
        else:
            code, size = _several(tables, first, src, pos, stop, method)
        at = put_code_point(out, at, code)
        pos += size
    out[at] = QUOTE
    return at + 1


@kernel
def put_wide(out, at, src, pos, stop, method):
    """Write text of two or four bytes a character as a JSON string."""
    out[at] = QUOTE
    at += 1
    while pos + 1 < stop:
        if method == UTF32:
            if pos + 4 > stop:
                break
            code = np.int64(0)
            for i in range(4):
                code = code << 8 | np.int64(src[pos + i])
            pos += 4
        else:
            code = _two_bytes(src, pos, method == UTF16_LITTLE)
            pos += 2
            if 0xD800 <= code < 0xDC00 and pos + 1 < stop:
                second = _two_bytes(src, pos, method == UTF16_LITTLE)
                if 0xDC00 <= second < 0xE000:
                    code = 0x10000 + ((code - 0xD800) << 10) + (second - 0xDC00)
                    pos += 2
        if 0xD800 <= code < 0xE000 or code > 0x10FFFF:
            code = np.int64(HALF)
        at = put_code_point(out, at, code)
    out[at] = QUOTE
    return at + 1


@kernel
def _two_bytes(src, pos, is_little):
    if is_little:
        return np.int64(src[pos]) | np.int64(src[pos + 1]) << 8
    return np.int64(src[pos]) << 8 | np.int64(src[pos + 1])
