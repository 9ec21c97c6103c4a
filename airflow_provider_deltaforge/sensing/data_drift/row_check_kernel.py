"""The kernel that holds row images to what the catalog says of their columns.

One reading of each image, nothing built from it. A clean column costs the comparison of its name
and the skipping of its value; only what does not fit is counted and its place noted.
"""

import numpy as np

from airflow_provider_deltaforge.columns.bytes_kernel import pointer
from airflow_provider_deltaforge.columns.compiled import kernel
from airflow_provider_deltaforge.columns.json_compare_kernel import read_character
from airflow_provider_deltaforge.columns.json_scan_kernel import (
    CLOSE_OBJECT,
    COMMA,
    KIND_OF,
    OPEN_OBJECT,
    QUOTE,
    same_key,
    skip_key,
    skip_number,
    skip_space,
    skip_string,
    skip_value,
)
from airflow_provider_deltaforge.columns.json_scan_kernel import NUMBER as KIND_NUMBER
from airflow_provider_deltaforge.columns.json_scan_kernel import STRING as KIND_STRING
from airflow_provider_deltaforge.columns.marks import UNCHANGED

NULL, BOOL, INTEGER, NUMBER, STRING, OBJECT, ARRAY = (1 << bit for bit in range(7))
"""What a value is; a column allows some of them."""
DECIMAL, SPECIAL, WRAPPED = (1 << bit for bit in range(7, 10))
"""More that a column allows: strings that are decimal numbers, strings for what JSON has no number
for, and objects that stand for bytes and geometries."""
ANYTHING = BOOL | INTEGER | NUMBER | STRING | OBJECT | ARRAY

ANY_VALUE, SIGNED, UNSIGNED, LENGTH, DIGITS, LABEL, MEMBERS = range(7)
"""Which values are in range: all; between two integers; up to an integer above zero; texts of so
many characters; decimals of so many digits before and behind the point; one of some labels;
labels joined by commas."""

ALLOWED, NULLABLE, RANGE, LOW, HIGH = range(5)
"""The fields of a column's rule."""
RULE = 5

UNEXPECTED_NULL, TYPE_MISMATCH, OUT_OF_RANGE, UNDECLARED, MISSING = range(5)
"""What may be found."""
FINDINGS = 5

SAMPLES = 5
EXTRAS_MAX = 64
"""How many undeclared columns are counted separately in one batch."""

SKIPPED, CLEAN, DRIFTED = range(3)
"""What a row is: not looked at, as expected, or not."""

# By kind of ``json_scan_kernel``; a number may be an integer.
_FORMS = np.array([0, NULL, BOOL, NUMBER, STRING, OBJECT, ARRAY], np.int64)
_UNCHANGED = np.frombuffer(UNCHANGED, np.uint8)
_WRAPPERS = np.frombuffer(b'_base64"srid"', np.uint8)
_BASE64_END, _SRID_END = 8, 13
_SPECIALS = np.frombuffer(b"NaNInfinity-Infinity", np.uint8)
MIX, SEED = 0x100000001B3, 0xCBF29CE484222325
"""Of the hash of labels (FNV-1a over code points)."""
BEYOND_FIRST_PLANE = 0x10000
_MIX, _SEED = np.uint64(MIX), np.uint64(SEED)
_TEN = np.uint64(10)
_LAST = np.uint64(0xFFFFFFFFFFFFFFFF)
_LAST_BY_TEN = np.uint64(0xFFFFFFFFFFFFFFFF // 10)
_QUESTION_MARK = 63


@kernel
def _same_bytes(data, begin, end, other, start, stop):
    if end - begin != stop - start:
        return False
    for i in range(end - begin):
        if data[begin + i] != other[start + i]:
            return False
    return True


@kernel
def _mix_code(mixed, code):
    """Return a hash with one more character; those beyond the first plane count as ``?``.

    The catalog of MySQL prints them so.
    """
    if code >= BEYOND_FIRST_PLANE:
        code = np.int64(_QUESTION_MARK)
    return (mixed ^ np.uint64(code)) * _MIX


@kernel
def _is_label(labels, first, last, mixed):
    """Return whether a hash is among ``labels[first:last]``, which are sorted."""
    stop = last
    while first < last:
        middle = (first + last) >> 1
        if labels[middle] < mixed:
            first = middle + 1
        else:
            last = middle
    return first < stop and labels[first] == mixed


@kernel
def _fits_labels(data, begin, end, labels, first, last, several):
    """Return whether a text is a label, or several joined by commas; the empty text always is.

    Where MySQL is not strict it stores that for a value which is none of an enum's.
    """
    if begin >= end:
        return True
    mixed = _SEED
    while begin < end:
        code, begin = read_character(data, begin, end)
        if several and code == COMMA:
            if not _is_label(labels, first, last, mixed):
                return False
            mixed = _SEED
        else:
            mixed = _mix_code(mixed, code)
    return _is_label(labels, first, last, mixed)


@kernel
def _is_short(data, begin, end, characters):
    """Return whether a text has at most so many characters."""
    if end - begin <= characters:
        return True
    count = np.int64(0)
    while begin < end:
        _, begin = read_character(data, begin, end)
        count += 1
    return count <= characters


@kernel
def _fits_digits(data, begin, end, before, behind):
    """Return whether a decimal has no more digits than a column; zeros at its ends do not count."""
    if data[begin] == 45 or data[begin] == 43:
        begin += 1
    while begin < end and data[begin] == 48:
        begin += 1
    whole = np.int64(0)
    while begin < end and 48 <= data[begin] <= 57:
        whole += 1
        begin += 1
    if begin < end and data[begin] == 46:
        last = end
        while last > begin and data[last - 1] == 48:
            last -= 1
        if last - begin - 1 > max(behind, 0):
            return False
        begin = end
    if begin < end:
        return True  # With an exponent: its digits say little.
    return whole <= max(before, 0)


@kernel
def _fits_integer(data, begin, end, rule, low, high):
    """Return whether an integer lies between two bounds; every digit counts."""
    negative = data[begin] == 45
    if negative:
        begin += 1
    size = np.uint64(0)
    while begin < end:
        digit = np.uint64(data[begin] - 48)
        if size > _LAST_BY_TEN or (size == _LAST_BY_TEN and digit > _LAST - _LAST_BY_TEN * _TEN):
            return False
        size = size * _TEN + digit
        begin += 1
    if negative and size:
        # The lowest number has no positive counterpart.
        return rule == SIGNED and low < 0 and size <= np.uint64(-(low + 1)) + np.uint64(1)
    return size <= np.uint64(high)


@kernel
def _is_decimal(data, begin, end):
    """Return whether a text is a decimal number."""
    if begin < end and (data[begin] == 45 or data[begin] == 43):
        begin += 1
    digits = 0
    while begin < end and (48 <= data[begin] <= 57 or data[begin] == 46):
        digits += data[begin] != 46
        begin += 1
    if digits and begin < end and data[begin] | 32 == 101:
        begin += 1
        if begin < end and (data[begin] == 45 or data[begin] == 43):
            begin += 1
        digits = 0
        while begin < end and 48 <= data[begin] <= 57:
            digits += 1
            begin += 1
    return digits > 0 and begin == end


@kernel
def _is_special(data, begin, end):
    """Return whether a text is NaN or an infinity."""
    return (
        _same_bytes(data, begin, end, _SPECIALS, 0, 3)
        or _same_bytes(data, begin, end, _SPECIALS, 3, 11)
        or _same_bytes(data, begin, end, _SPECIALS, 11, 20)
    )


@kernel
def _is_wrapped(data, at, end):
    """Return whether an object stands for bytes or a geometry, by its first key."""
    at = skip_space(data, at + 1, end)
    return at < end and (
        _same_bytes(data, at + 1, min(end, at + 1 + _BASE64_END), _WRAPPERS, 0, _BASE64_END)
        or _same_bytes(
            data, at + 1, min(end, at + 1 + _SRID_END - _BASE64_END),
            _WRAPPERS, _BASE64_END, _SRID_END,
        )
    )  # fmt: skip


@kernel
def _judge_string(data, begin, end, rules, rule, labels):
    """Return what is wrong with a string, whose quotes lie outside; -1: nothing."""
    allowed, kind = rules[rule + ALLOWED], rules[rule + RANGE]
    low, high = rules[rule + LOW], rules[rule + HIGH]
    if not allowed & STRING:
        if allowed & SPECIAL and _is_special(data, begin, end):
            return -1
        if not (allowed & DECIMAL and _is_decimal(data, begin, end)):
            return TYPE_MISMATCH
    if kind == LENGTH:
        fits = _is_short(data, begin, end, high)
    elif kind == DIGITS:
        fits = _fits_digits(data, begin, end, low, high)
    elif kind == LABEL or kind == MEMBERS:
        fits = _fits_labels(data, begin, end, labels, low, high, kind == MEMBERS)
    else:
        fits = True
    return -1 if fits else OUT_OF_RANGE


@kernel
def _judge_number(data, begin, end, rules, rule, is_integer):
    """Return what is wrong with a number; -1: nothing."""
    if not rules[rule + ALLOWED] & (INTEGER if is_integer else NUMBER):
        return TYPE_MISMATCH
    kind, low, high = rules[rule + RANGE], rules[rule + LOW], rules[rule + HIGH]
    if kind == DIGITS:
        return -1 if _fits_digits(data, begin, end, low, high) else OUT_OF_RANGE
    if is_integer and (kind == SIGNED or kind == UNSIGNED):
        fits = _fits_integer(data, begin, end, kind, low, high)
        return -1 if fits else OUT_OF_RANGE
    return -1


@kernel
def _is_whole(data, begin, end):
    """Return whether a number is written without a fraction and an exponent."""
    while begin < end:
        byte = data[begin]
        if byte == 46 or byte | 32 == 101:
            return False
        begin += 1
    return True


@kernel
def _judge(data, begin, stop, limit, stack, rules, rule, labels):
    """Return (offset behind a value, what it is, what is wrong with it or -1).

    ``rule`` is where the column's rule begins in ``rules``.
    """
    kind = KIND_OF[data[begin]]
    if kind == KIND_STRING:
        end, _ = skip_string(data, begin + 1, stop, limit)
        wrong = _judge_string(data, begin + 1, end - 1, rules, rule, labels) if end >= 0 else -1
        return end, np.int64(STRING), wrong
    if kind == KIND_NUMBER:
        end = skip_number(data, begin, stop)
        is_integer = end >= 0 and _is_whole(data, begin, end)
        wrong = _judge_number(data, begin, end, rules, rule, is_integer) if end >= 0 else -1
        return end, np.int64(INTEGER if is_integer else NUMBER), wrong
    end = skip_value(data, begin, stop, limit, stack)
    form = _FORMS[kind]
    if end < 0:
        return end, form, -1
    if form == NULL:
        return end, form, -1 if rules[rule + NULLABLE] else UNEXPECTED_NULL
    fits = rules[rule + ALLOWED] & form != 0
    if form == OBJECT and not fits:
        fits = rules[rule + ALLOWED] & WRAPPED != 0 and _is_wrapped(data, begin, end)
        fits = fits or _same_bytes(data, begin, end, _UNCHANGED, 0, len(_UNCHANGED))
    return end, form, -1 if fits else TYPE_MISMATCH


@kernel
def _column_of(data, key, end, escaped, names, name_ends, first, count):
    """Return which column a key names, or -1; ``first`` is where to begin to look."""
    for step in range(count):
        column = first + step
        if column >= count:
            column -= count
        begin = name_ends[column - 1] if column else np.int64(0)
        if same_key(data, key, end, escaped, names, begin, name_ends[column]):
            return np.int64(column)
    return np.int64(-1)


@kernel
def _extra_of(data, key, end, extras, used):
    """Return which undeclared column a key names, a new one where there is room, or -1."""
    for i in range(used):
        if _same_bytes(data, extras[2 * i], extras[2 * i + 1], data, key, end):
            return np.int64(i)
    if used == EXTRAS_MAX:
        return np.int64(-1)
    extras[2 * used] = key
    extras[2 * used + 1] = end
    return np.int64(used)


@kernel
def _note(counts, observed, spans, column, wrong, form, begin, end):
    place = FINDINGS * column + wrong
    at = counts[place]
    if at < SAMPLES:
        spans[2 * (SAMPLES * place + at)] = begin
        spans[2 * (SAMPLES * place + at) + 1] = end
    counts[place] = at + 1
    observed[place] |= form


@kernel
def check_rows(
    data, offsets, present, rows, names, name_ends, rules, labels, stack_bytes,
    counts, observed, spans, extras, totals, flags,
):  # fmt: skip
    """Check the images of some rows of one table.

    Args:
        data: the column of images, as in ``binary_columns.Parts``.
        offsets: the column.
        present: the column.
        rows: int64, which of them.
        names: uint8, the declared columns' names one behind the other.
        name_ends: int64, where each ends.
        rules: int64 (columns, RULE), the rule of each column.
        labels: uint64, hashes of labels; ``LOW`` and ``HIGH`` of a rule say which are a column's.
        stack_bytes: uint8, from ``stack_for``.
        counts: int64 (columns + EXTRAS_MAX, FINDINGS), zeros; filled.
        observed: int64 of the same shape, zeros; what the values are that do not fit.
        spans: int64 (columns + EXTRAS_MAX, FINDINGS, SAMPLES, 2), where the first of them lie.
        extras: int64 (EXTRAS_MAX, 2), where the names of undeclared columns lie.
        totals: int64 (3), zeros: rows checked, undeclared columns, values of further ones.
        flags: uint8 per row, filled.
    """
    text, limit, stack = pointer(data), len(data), pointer(stack_bytes)
    columns = len(name_ends)
    last_row = np.full(columns + 1, -1, np.int64)
    seen, keys, ends, about, hashes = (
        pointer(last_row), pointer(names), pointer(name_ends), pointer(rules), pointer(labels),
    )  # fmt: skip
    noted, forms, places, others = (
        pointer(counts), pointer(observed), pointer(spans), pointer(extras),
    )  # fmt: skip
    for i in range(len(rows)):
        row = rows[i]
        flags[i] = SKIPPED
        stop = np.int64(offsets[row + 1])
        at = skip_space(text, np.int64(offsets[row]), stop)
        if at >= stop or (len(present) and not present[row]) or text[at] != OPEN_OBJECT:
            continue
        state, expected, found = CLEAN, 0, 0
        at = skip_space(text, at + 1, stop)
        is_open = at < stop and text[at] == QUOTE
        while is_open:
            key = at + 1
            behind, begin, escaped = skip_key(text, at, stop, limit)
            if behind < 0 or begin >= stop:
                break
            last = behind - 1
            column = _column_of(text, key, last, escaped, keys, ends, expected, columns)
            if column >= 0:
                at, form, wrong = _judge(
                    text, begin, stop, limit, stack, about, RULE * column, hashes
                )  # fmt: skip
                found += seen[column] != i
                seen[column] = i
                expected = column + 1 if column + 1 < columns else 0
                if wrong >= 0 and at >= 0:
                    _note(noted, forms, places, column, wrong, form, begin, at)
                    state = DRIFTED
            else:
                at = skip_value(text, begin, stop, limit, stack)
                extra = _extra_of(text, key, last, others, totals[1])
                totals[1] += extra == totals[1]
                totals[2] += extra < 0
                if extra >= 0 and at >= 0:
                    form = _FORMS[KIND_OF[text[begin]]]
                    if form == NUMBER and _is_whole(text, begin, at):
                        form = np.int64(INTEGER)
                    _note(noted, forms, places, columns + extra, UNDECLARED, form, begin, at)
                state = DRIFTED
            at = skip_space(text, at, stop) if at >= 0 else stop
            is_open = at < stop and text[at] == COMMA
            if is_open:
                at = skip_space(text, at + 1, stop)
        if at >= stop or text[at] != CLOSE_OBJECT or skip_space(text, at + 1, stop) < stop:
            continue
        totals[0] += 1
        flags[i] = state
        if found < columns:
            for column in range(columns):
                noted[FINDINGS * column + MISSING] += seen[column] != i
