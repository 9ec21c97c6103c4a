"""Kernel that gives JSON texts of one structure the same number.

A structure is the names of an object's members with the kinds of their values, in any order, down
to a depth. Of an array it is the different structures of its first elements, and of a map (an
object whose keys are data) the different structures of its values. ``structures`` is how it is
called; see ``columns.json_scan_kernel`` for what the arguments are.
"""

import numpy as np

from airflow_provider_deltaforge.columns.bytes_kernel import load_word, pointer
from airflow_provider_deltaforge.columns.compiled import kernel
from airflow_provider_deltaforge.columns.json_scan_kernel import (
    ABSENT,
    ARRAY,
    BOOL,
    CLOSE_ARRAY,
    CLOSE_OBJECT,
    COMMA,
    KIND_OF,
    NUMBER,
    OBJECT,
    QUOTE,
    STRING,
    skip_key,
    skip_literal,
    skip_number,
    skip_space,
    skip_string,
    skip_value,
)

DEPTH_MAX = 64
"""Levels below the first that can be looked into."""
ELEMENTS_MAX = 100
"""Elements of one array that are looked at."""
ROOT = np.uint64(0x9E3779B97F4A7C15)
DYNAMIC = np.uint64(0xD6E8FEB86659FD93)
"""Stands for the key of a map that is no field."""
ELEMENT = np.uint64(0xA0761D6478BD642F)
"""Stands for the key of an array's element."""

DISTINCT = 16
FRAMES = DEPTH_MAX + 2
_DIGITS_MAX = 18  # Longer integers may not fit 64 bits.
_PRIME = np.uint64(0xE7037ED1A0B428DB)
_BYTES_KEY = np.frombuffer(b'"_base64"', np.uint8)
# What values are that are not looked into.
_BOOL, _INTEGER, _LONG, _FLOAT, _STRING, _NULL, _BYTES, _OBJECT, _ARRAY = (
    np.uint64(0x8EBC6AF09C88C6E3 * n & 0xFFFFFFFFFFFFFFFF) for n in range(1, 10)
)


@kernel
def mixed(left, right):
    """Return a number that stands for two numbers in this order."""
    word = (left ^ (right * _PRIME)) * ROOT
    word ^= word >> np.uint64(32)
    word *= _PRIME
    return word ^ (word >> np.uint64(29))


@kernel
def key_number(data, at, stop):
    """Return the number of the key whose bytes these are."""
    word = mixed(ROOT, np.uint64(stop - at))
    while stop - at >= 8:
        word = mixed(word, load_word(data, at))
        at += 8
    last = np.uint64(0)
    while at < stop:
        last = last << np.uint64(8) | np.uint64(data[at])
        at += 1
    return mixed(word, last)


@kernel
def _is_among(numbers, number):
    """Return whether a number is one of these, which are sorted."""
    low, high = 0, len(numbers)
    while low < high:
        middle = (low + high) >> 1
        if numbers[middle] < number:
            low = middle + 1
        else:
            high = middle
    return low < len(numbers) and numbers[low] == number


@kernel
def _of_number(data, at, stop):
    for i in range(at, stop):
        if data[i] == 46 or data[i] | 32 == 101:
            return _FLOAT
    return _INTEGER if stop - at <= _DIGITS_MAX else _LONG


@kernel
def _behind_bytes(data, at, stop, limit):
    """Return the offset behind an object that holds bytes and nothing else; -1 for any other."""
    at = skip_space(data, at + 1, stop)
    if at + len(_BYTES_KEY) > stop:
        return np.int64(-1)
    for i in range(len(_BYTES_KEY)):
        if data[at + i] != _BYTES_KEY[i]:
            return np.int64(-1)
    _, at, _ = skip_key(data, at, stop, limit)
    if not 0 <= at < stop or data[at] != QUOTE:
        return np.int64(-1)
    at, _ = skip_string(data, at + 1, stop, limit)
    at = skip_space(data, at, stop) if at >= 0 else stop
    return at + 1 if at < stop and data[at] == CLOSE_OBJECT else np.int64(-1)


@kernel
def _skip_elements(data, at, stop, limit, stack):
    """Return the offset of the bracket that closes an array, from a later element on."""
    while True:
        at = skip_value(data, at, stop, limit, stack)
        if at < 0:
            return at
        at = skip_space(data, at, stop)
        if at >= stop:
            return np.int64(-1)
        if data[at] == CLOSE_ARRAY:
            return at
        if data[at] != COMMA:
            return np.int64(-1)
        at = skip_space(data, at + 1, stop)


@kernel
def _note_member(sums, known, distinct, top, member, is_set):
    """Add a member to the sum of what encloses it; of a set, each different one once."""
    if is_set:
        for i in range(known[top]):
            if distinct[top * DISTINCT + i] == member:
                return
        if known[top] < DISTINCT:
            distinct[top * DISTINCT + known[top]] = member
            known[top] += 1
    sums[top] += member


@kernel
def _structure_of(text, at, stop, limit, depth_max, opaque, maps, stable, stack, frames):
    """Return the number of the structure of one text, 0 if it is not JSON.

    Args:
        text: the column's bytes.
        at: where the text begins.
        stop: where it ends.
        limit: where the column ends.
        depth_max: see ``fill_structures``.
        opaque: see ``fill_structures``.
        maps: see ``fill_structures``.
        stable: see ``fill_structures``.
        stack: see ``skip_value``.
        frames: pointers to work with, for each level: its place, its sum, its key, its different
            members (uint64); its kind, its commas, how many different members, whether it is a
            map (int64).
    """
    paths, sums, keys, distinct, kinds, commas, known, is_map = frames
    level = 0
    place, number = ROOT, np.uint64(0)
    is_opaque = False
    at = skip_space(text, at, stop)
    while at >= 0:
        # A value begins here.
        kind = KIND_OF[text[at]] if at < stop else ABSENT
        opened = False
        if kind == STRING:
            at, _ = skip_string(text, at + 1, stop, limit)
            number = _STRING
        elif kind == NUMBER:
            begin = at
            at = skip_number(text, at, stop)
            number = _of_number(text, begin, at)
        elif kind == OBJECT or kind == ARRAY:
            behind = _behind_bytes(text, at, stop, limit) if kind == OBJECT else np.int64(-1)
            if behind >= 0:
                at, number = behind, _BYTES
            elif is_opaque or level > depth_max:
                at = skip_value(text, at, stop, limit, stack)
                number = _OBJECT if kind == OBJECT else _ARRAY
            else:
                paths[level], sums[level], kinds[level] = place, np.uint64(kind), kind
                is_map[level] = kind == OBJECT and _is_among(maps, place)
                commas[level] = known[level] = 0
                at = skip_space(text, at + 1, stop)
                closing = CLOSE_OBJECT if kind == OBJECT else CLOSE_ARRAY
                if at < stop and text[at] == closing:
                    at, number = at + 1, mixed(sums[level], ROOT)
                else:
                    level, opened = level + 1, True
        elif kind == ABSENT:
            at = np.int64(-1)
        else:
            at = skip_literal(text, at, stop)
            number = _BOOL if kind == BOOL else _NULL
        while at >= 0 and level and not opened:
            # Behind a value: what encloses it takes note of it, then ends or goes on.
            top = level - 1
            in_object = kinds[top] == OBJECT
            member = mixed(keys[top] if in_object else ELEMENT, number)
            is_set = not in_object or keys[top] == DYNAMIC
            _note_member(sums, known, distinct, top, member, is_set)
            at = skip_space(text, at, stop)
            if at < stop and text[at] == COMMA:
                at = skip_space(text, at + 1, stop)
                opened = True
                commas[top] += 1
                if not in_object and commas[top] >= ELEMENTS_MAX:
                    at = _skip_elements(text, at, stop, limit, stack)
                    opened = False
            if at >= 0 and not opened:
                closing = CLOSE_OBJECT if in_object else CLOSE_ARRAY
                level, number = level - 1, mixed(sums[top], ROOT)
                at = at + 1 if at < stop and text[at] == closing else np.int64(-1)
        if at < 0 or level == 0:
            break
        top = level - 1
        place, is_opaque = mixed(paths[top], ELEMENT), False
        if kinds[top] == OBJECT:
            behind, begin, _ = skip_key(text, at, stop, limit)
            if behind < 0:
                return np.uint64(0)
            keys[top] = key_number(text, at + 1, behind - 1)
            is_opaque = level == 1 and _is_among(opaque, keys[top])
            place = mixed(paths[top], keys[top])
            if is_map[top] and not _is_among(stable, place):
                keys[top], place = DYNAMIC, mixed(paths[top], DYNAMIC)
            at = begin
    return number if at >= 0 and skip_space(text, at, stop) == stop else np.uint64(0)


@kernel
def fill_structures(
    data, offsets, depth_max, opaque, maps, stable, stack_bytes, numbers, counts, out
):
    """Number the structure of each text; 0 for what is not JSON.

    Args:
        data: the column, in which no text is null.
        offsets: the column.
        depth_max: levels below the first that are looked into.
        opaque: uint64, sorted, the numbers of the keys of the outermost object whose values are
            not looked into.
        maps: uint64, sorted, the places of maps.
        stable: uint64, sorted, the places of those of their keys that are fields.
        stack_bytes: uint8, from ``stack_for``.
        numbers: uint64 of size ``(3 + DISTINCT) * FRAMES``, to work with.
        counts: int64 of size ``4 * FRAMES``, to work with.
        out: uint64 per text, filled.
    """
    text, stack = pointer(data), pointer(stack_bytes)
    frames = (
        pointer(numbers),
        pointer(numbers[FRAMES:]),
        pointer(numbers[2 * FRAMES :]),
        pointer(numbers[3 * FRAMES :]),
        pointer(counts),
        pointer(counts[FRAMES:]),
        pointer(counts[2 * FRAMES :]),
        pointer(counts[3 * FRAMES :]),
    )
    for row in range(len(offsets) - 1):
        out[row] = _structure_of(
            text, np.int64(offsets[row]), np.int64(offsets[row + 1]), len(data), depth_max,
            opaque, maps, stable, stack, frames,
        )  # fmt: skip
