"""Kernels that append the shortest decimal form of a float; Schubfach by Raffaello Giulietti.

The text is what Python's ``repr`` prints: positional from 1e-4 up to below 1e16, else with an
exponent, and always recognisable as a float (``1.0``). FLOAT columns get the shortest form that
reads back as the same 32-bit float.
"""

import numpy as np

from airflow_provider_deltaforge.columns.json_text_kernel import kernel, put_bytes
from airflow_provider_deltaforge.columns.number_text_kernel import put_int

_U0 = np.uint64(0)
_U1 = np.uint64(1)
_U2 = np.uint64(2)
_U4 = np.uint64(4)
_U10 = np.uint64(10)
_U32 = np.uint64(32)
_U40 = np.uint64(40)
_LOW32 = np.uint64(0xFFFFFFFF)

_POWER_FIRST = -292


def _power_of_ten(exponent: int) -> int:
    """Return ``10**exponent`` scaled to exactly 128 bits and rounded up."""
    power: int = 10 ** abs(exponent)
    if exponent >= 0:
        excess = power.bit_length() - 128
        return power << -excess if excess <= 0 else -(-power >> excess)
    scale = 127 + power.bit_length()
    if (1 << scale) // power >= 1 << 128:
        scale -= 1
    # A negative power of ten is never exact.
    return (1 << scale) // power + 1


_POWERS = [_power_of_ten(k) for k in range(_POWER_FIRST, 325)]
_POWERS_HIGH = np.array([p >> 64 for p in _POWERS], np.uint64)
_POWERS_LOW = np.array([p & 0xFFFFFFFFFFFFFFFF for p in _POWERS], np.uint64)
# The 64-bit powers of the float32 version, rounded up as well; only -31 to 45 are used.
_POWERS_FLOAT = np.array([min(-(-p >> 64), 0xFFFFFFFFFFFFFFFF) for p in _POWERS], np.uint64)

_NAN = np.frombuffer(b'"NaN"', np.uint8)
_INFINITY = np.frombuffer(b'"Infinity"', np.uint8)
_NEGATIVE_INFINITY = np.frombuffer(b'"-Infinity"', np.uint8)


@kernel
def _multiply(left, right):
    """Return the high and the low half of the 128-bit product of two uint64."""
    left_low = left & _LOW32
    left_high = left >> _U32
    right_low = right & _LOW32
    right_high = right >> _U32
    low = left_low * right_low
    middle = left_high * right_low + (low >> _U32)
    cross = left_low * right_high + (middle & _LOW32)
    high = left_high * right_high + (middle >> _U32) + (cross >> _U32)
    return high, (cross << _U32) | (low & _LOW32)


@kernel
def _round_to_odd(index, scaled):
    """Return the scaled product with a power of ten; its last bit says that bits were lost."""
    carry, _ = _multiply(_POWERS_LOW[index], scaled)
    high, low = _multiply(_POWERS_HIGH[index], scaled)
    total = low + carry
    if total < low:
        high += _U1
    return high | _U1 if total > _U1 else high


@kernel
def _round_to_odd_float(index, scaled):
    high, low = _multiply(_POWERS_FLOAT[index], scaled)
    return high | _U1 if (low >> _U32) > _U1 else high


@kernel
def _choose(lower_end, value, upper_end, even, exponent):
    """Return the shortest digits inside the rounding interval, closest to the value."""
    shut = _U0 if even else _U1
    lower = lower_end + shut
    upper = upper_end - shut
    digits = value // _U4
    if digits >= _U10:
        tens = digits // _U10
        under = lower <= _U40 * tens
        over = _U40 * tens + _U40 <= upper
        if under != over:
            return (tens + _U1 if over else tens), exponent + 1
    under = lower <= _U4 * digits
    over = _U4 * digits + _U4 <= upper
    if under != over:
        return (digits + _U1 if over else digits), exponent
    middle = _U4 * digits + _U2
    up = value > middle or (value == middle and (digits & _U1) == _U1)
    return (digits + _U1 if up else digits), exponent


@kernel
def _shortest(fraction, biased, width, bias):
    """Return (digits, power of ten) of the float ``fraction``/``biased`` exponent, not zero."""
    if biased != 0:
        significand = (_U1 << np.uint64(width)) | fraction
        power = biased - bias
        if 0 <= -power <= width:
            mask = (_U1 << np.uint64(-power)) - _U1
            if (significand & mask) == _U0:
                return significand >> np.uint64(-power), np.int64(0)
    else:
        significand = fraction
        power = np.int64(1) - bias
    closer = fraction == _U0 and biased > 1
    exponent = (power * 1262611 - (524031 if closer else 0)) >> 22
    shift = np.uint64(power + ((-exponent * 1741647) >> 19) + 1)
    index = -exponent - _POWER_FIRST
    middle = _U4 * significand
    below = middle - (_U1 if closer else _U2)
    above = middle + _U2
    even = (significand & _U1) == _U0
    if width == 23:
        return _choose(
            _round_to_odd_float(index, below << shift),
            _round_to_odd_float(index, middle << shift),
            _round_to_odd_float(index, above << shift),
            even,
            exponent,
        )
    return _choose(
        _round_to_odd(index, below << shift),
        _round_to_odd(index, middle << shift),
        _round_to_odd(index, above << shift),
        even,
        exponent,
    )


@kernel
def put_decimal_float(out, at, negative, digits, exponent):
    """Write ``digits * 10**exponent`` (uint64, int64) as a float's JSON number."""
    return _put_float(out, at, negative, digits, exponent, -3, 16)


@kernel
def _put_float(out, at, negative, digits, exponent, point_min, point_max):
    """The same, positional while the decimal point lies within the two bounds."""
    if negative:
        out[at] = 45
        at += 1
    left = np.uint64(digits)
    if left == _U0:
        out[at] = 48
        out[at + 1] = 46
        out[at + 2] = 48
        return at + 3
    while left % _U10 == _U0:
        left //= _U10
        exponent += 1
    count = 0
    rest = left
    while rest != _U0:
        rest //= _U10
        count += 1
    point = count + exponent  # digits before the decimal point
    if point_min <= point <= point_max:
        return _put_positional(out, at, left, count, point)
    start = at + 1
    for i in range(count - 1, -1, -1):
        rest = left // _U10
        out[start + i] = np.uint8(48) + np.uint8(left - rest * _U10)
        left = rest
    out[at] = out[start]
    at += 1
    if count > 1:
        out[at] = 46
        at += count
    out[at] = 101
    return put_int(out, at + 1, point - 1)


@kernel
def _put_positional(out, at, digits, count, point):
    left = digits
    if point <= 0:
        out[at] = 48
        out[at + 1] = 46
        at += 2
        for _ in range(-point):
            out[at] = 48
            at += 1
        end = at + count
        for i in range(end - 1, at - 1, -1):
            rest = left // _U10
            out[i] = np.uint8(48) + np.uint8(left - rest * _U10)
            left = rest
        return end
    if count <= point:
        end = at + count
        for i in range(end - 1, at - 1, -1):
            rest = left // _U10
            out[i] = np.uint8(48) + np.uint8(left - rest * _U10)
            left = rest
        for _ in range(point - count):
            out[end] = 48
            end += 1
        out[end] = 46
        out[end + 1] = 48
        return end + 2
    end = at + count + 1
    for i in range(end - 1, at - 1, -1):
        if i == at + point:
            out[i] = 46
        else:
            rest = left // _U10
            out[i] = np.uint8(48) + np.uint8(left - rest * _U10)
            left = rest
    return end


@kernel
def _put_special(out, at, negative, fraction):
    if fraction != _U0:
        return put_bytes(out, at, _NAN, 0, 5)
    if negative:
        return put_bytes(out, at, _NEGATIVE_INFINITY, 0, 11)
    return put_bytes(out, at, _INFINITY, 0, 10)


@kernel
def put_float64(out, at, bits):
    """Write a double from its 64 bits (uint64); NaN and infinities become strings."""
    negative = (bits >> np.uint64(63)) != _U0
    fraction = bits & np.uint64(0xFFFFFFFFFFFFF)
    biased = np.int64((bits >> np.uint64(52)) & np.uint64(0x7FF))
    if biased == 0x7FF:
        return _put_special(out, at, negative, fraction)
    if biased == 0 and fraction == _U0:
        return put_decimal_float(out, at, negative, _U0, np.int64(0))
    digits, exponent = _shortest(fraction, biased, 52, np.int64(1075))
    return put_decimal_float(out, at, negative, digits, exponent)


@kernel
def put_json_double(out, at, bits):
    """Write a double inside a JSON document the way the server's own JSON text has it."""
    negative = (bits >> np.uint64(63)) != _U0
    fraction = bits & np.uint64(0xFFFFFFFFFFFFF)
    biased = np.int64((bits >> np.uint64(52)) & np.uint64(0x7FF))
    if biased == 0 and fraction == _U0:
        return put_decimal_float(out, at, negative, _U0, np.int64(0))
    digits, exponent = _shortest(fraction, biased, 52, np.int64(1075))
    return _put_float(out, at, negative, digits, exponent, -14, 15)


@kernel
def put_float32(out, at, bits):
    """Write a float from its 32 bits (in a uint64), the shortest that reads back as that float."""
    negative = (bits >> np.uint64(31)) != _U0
    fraction = bits & np.uint64(0x7FFFFF)
    biased = np.int64((bits >> np.uint64(23)) & np.uint64(0xFF))
    if biased == 0xFF:
        return _put_special(out, at, negative, fraction)
    if biased == 0 and fraction == _U0:
        return put_decimal_float(out, at, negative, _U0, np.int64(0))
    digits, exponent = _shortest(fraction, biased, 23, np.int64(150))
    return put_decimal_float(out, at, negative, digits, exponent)
