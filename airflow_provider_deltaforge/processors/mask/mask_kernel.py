"""Kernels that find the values to mask in JSON texts, every one of them, and put others there.

A rule's path is a row of patterns for keys. Arrays are transparent: the path goes on inside each of
their objects. Repeated keys all count, because a reader of the text may take any of them.
"""

from typing import Any, NamedTuple

import numpy as np

from airflow_provider_deltaforge.columns.bytes_kernel import pointer
from airflow_provider_deltaforge.columns.compiled import kernel
from airflow_provider_deltaforge.columns.json_column_kernel import put_bytes, put_decoded
from airflow_provider_deltaforge.columns.json_scan_kernel import (
    BACKSLASH,
    CLOSE_ARRAY,
    CLOSE_OBJECT,
    COMMA,
    DEPTH_MAX,
    OPEN_OBJECT,
    QUOTE,
    skip_key,
    skip_space,
    skip_value,
)
from airflow_provider_deltaforge.processors.mask.patterns import ANY

NONE = -1
"""No path leads to a value. Below it: some go on in a text, ``NONE - 1`` less the keys so far."""

BROKEN, DEEP = 1, 2
"""Why a text cannot be searched: it is not JSON, or paths go on more than ``DEPTH_MAX`` deep."""

_OPEN_ARRAY = 91


class Space(NamedTuple):
    """Arrays to work with; made in a kernel, some would be freed while they are in use.

    Attributes:
        stack: uint8, from ``stack_for``.
        key: uint8, as long as the longest text.
        active: bool (``DEPTH_MAX`` + 1, paths of the largest set): which fit so far.
        level: int64, ``DEPTH_MAX`` + 1: how many keys lead to an object or array.
        is_object: bool, ``DEPTH_MAX`` + 1.
        fresh: bool, ``DEPTH_MAX`` + 1: nothing of it was read yet.
        folds: int32 per code point, from ``patterns``.
    """

    stack: Any
    key: Any
    active: Any
    level: Any
    is_object: Any
    fresh: Any
    folds: Any


@kernel
def _folded(data, at, stop, folds):
    """Return (code point in which cases are alike, offset behind it) of UTF-8."""
    first = np.int64(data[at])
    if first < 0x80:
        return first + 32 if 65 <= first <= 90 else first, at + 1
    width = 2 if first < 0xE0 else (3 if first < 0xF0 else 4)
    code = first & (0x7F >> width)
    for i in range(1, min(width, stop - at)):
        code = code << 6 | np.int64(data[at + i]) & 0x3F
    if code < len(folds):
        code = np.int64(folds[code])
    return code, min(at + width, stop)


@kernel
def _fits(data, at, stop, pattern, begin, end, folds):
    """Return whether a name fits a folded pattern."""
    star, mark = np.int64(-1), np.int64(0)
    while at < stop:
        code, behind = _folded(data, at, stop, folds)
        if begin < end and pattern[begin] == ANY:
            star, mark = begin, at
            begin += 1
        elif begin < end and pattern[begin] == code:
            begin += 1
            at = behind
        elif star >= 0:
            _, mark = _folded(data, mark, stop, folds)
            begin, at = star + 1, mark
        else:
            return False
    while begin < end and pattern[begin] == ANY:
        begin += 1
    return begin == end


@kernel
def _match(
    data, at, stop, escaped, decoded, patterns, folds, ends, paths, members, level, active, below
):
    """Return (the first path that ends at a key or -1, whether any goes on below it).

    Args:
        data: what the key is in.
        at: where it begins.
        stop: where it ends.
        escaped: whether it has escapes.
        decoded: room for it without them.
        patterns: see ``find``.
        folds: see ``Space``.
        ends: see ``find``.
        paths: see ``find``.
        members: the paths of the set.
        level: how many keys lead here.
        active: which paths fit so far.
        below: filled for those that go on.
    """
    hit, inside = NONE, False
    name = data
    if escaped:
        stop = put_decoded(decoded, np.int64(0), data, at, stop)
        name, at = decoded, np.int64(0)
    for i in range(len(members)):
        if not active[i]:
            continue
        path = members[i]
        part = paths[path] + level
        begin = ends[part - 1] if part else 0
        if _fits(name, at, stop, patterns, begin, ends[part], folds):
            if part + 1 < paths[path + 1]:
                below[i] = inside = True
            elif hit < 0:
                hit = path
    return hit, inside


@kernel
def _may_hold_json(data, at, stop):
    """Return whether a value is text that may hold an object, an array, or a text of one.

    Decoded it is shorter, so it ends however often JSON was put into text.
    """
    if at >= stop or data[at] != QUOTE:
        return False
    at = skip_space(data, at + 1, stop)
    return data[at] == OPEN_OBJECT or data[at] == _OPEN_ARRAY or data[at] == BACKSLASH


@kernel
def _note(found, deeper, count, row, begin, end, hit, members, active):
    """Note a value, if there is room, and which paths go on in it; return how many there are."""
    if count < len(found):
        found[count, 0], found[count, 1], found[count, 2], found[count, 3] = row, begin, end, hit
        deeper[count] = False
        if hit < NONE:
            for i in range(len(members)):
                deeper[count, members[i]] = active[i]
    return count + 1


@kernel
def find(
    data, offsets, present, sets, firsts, members, paths, ends, names, space, found, deeper, faults
):
    """Find the values that paths lead to; nothing is looked for inside of one.

    Args:
        data: the column.
        offsets: the column.
        present: the column.
        sets: int32 per row, which set of paths is looked for; -1 for none.
        firsts: int64, where each set begins in ``members``, and the end of the last.
        members: int64, paths of the sets; of several that lead to a value the first counts.
        paths: int64, where each path begins in ``ends``, and the end of the last.
        ends: int64, where each path's patterns end in ``names``; the first begins at 0.
        names: int32, the patterns one behind the other.
        space: to work with; see ``Space``.
        found: int64 (room, 4), filled: the row of each value, where it begins and ends, and the
            path that leads to it or, for text that may hold JSON, what ``NONE`` says.
        deeper: bool (room, paths), filled for such text: the paths that go on in it.
        faults: uint8 per row, filled: 0, ``BROKEN`` or ``DEEP``.

    Returns:
        How many values there are; more than there is room for are only counted.
    """
    limit = len(data)
    text = pointer(data)
    stack, decoded = pointer(space.stack), pointer(space.key)
    active, level, is_object, fresh = space.active, space.level, space.is_object, space.fresh
    count = 0
    for row in range(len(offsets) - 1):
        faults[row] = 0
        if sets[row] < 0 or (len(present) and not present[row]):
            continue
        mine = members[firsts[sets[row]] : firsts[sets[row] + 1]]
        stop = np.int64(offsets[row + 1])
        at = skip_space(text, np.int64(offsets[row]), stop)
        before, depth, active[0] = count, -1, True
        if at < stop and text[at] in (OPEN_OBJECT, _OPEN_ARRAY):
            depth = 0
            is_object[0], fresh[0], level[0] = text[at] == OPEN_OBJECT, True, 0
            at += 1
        else:
            value = at
            at = skip_value(text, at, stop, limit, stack)
            if at >= 0 and _may_hold_json(text, value, at):
                count = _note(found, deeper, count, row, value, at, NONE - 1, mine, active[0])
        while depth >= 0:
            at = skip_space(text, at, stop)
            if at >= stop:
                at = np.int64(-1)
                break
            if text[at] == (CLOSE_OBJECT if is_object[depth] else CLOSE_ARRAY):
                at += 1
                depth -= 1
                continue
            if not fresh[depth]:
                if text[at] != COMMA:
                    at = np.int64(-1)
                    break
                at = skip_space(text, at + 1, stop)
            fresh[depth] = False
            inner = depth + 1
            active[inner] = False
            if is_object[depth]:
                key = at + 1
                behind, at, escaped = skip_key(text, at, stop, limit)
                if behind < 0:
                    break
                hit, inside = _match(
                    text, key, behind - 1, escaped, decoded, names, space.folds, ends, paths, mine,
                    level[depth], active[depth], active[inner],
                )  # fmt: skip
                level[inner] = level[depth] + 1
            else:
                active[inner] = active[depth]
                level[inner] = level[depth]
                hit, inside = NONE, True
            value = at
            if hit < 0 and inside and at < stop and text[at] in (OPEN_OBJECT, _OPEN_ARRAY):
                if inner == DEPTH_MAX:
                    faults[row] = DEEP
                    break
                depth = inner
                is_object[depth] = text[at] == OPEN_OBJECT
                fresh[depth] = True
                at += 1
                continue
            at = skip_value(text, at, stop, limit, stack)
            if at < 0:
                break
            if hit < 0 and inside and _may_hold_json(text, value, at):
                hit = NONE - 1 - level[inner]
            if hit != NONE:
                count = _note(found, deeper, count, row, value, at, hit, mine, active[inner])
        if faults[row] == 0 and (at < 0 or skip_space(text, at, stop) != stop):
            faults[row] = BROKEN
        if faults[row]:
            count = before
    return count


@kernel
def put(data, offsets, rows, starts, stops, new, new_offsets, out, out_offsets):
    """Write each text with values replaced.

    Args:
        data: the column.
        offsets: the column.
        rows: int64, the row of each value, in order.
        starts: int64, where each begins.
        stops: int64, where each ends.
        new: uint8, the replacements.
        new_offsets: int32, where each begins, and the end of the last.
        out: uint8, as large as the texts and the replacements together.
        out_offsets: int32, filled.

    Returns:
        How many bytes were written.
    """
    text, fresh, target = pointer(data), pointer(new), pointer(out)
    at = np.int64(0)
    place = 0
    out_offsets[0] = 0
    for row in range(len(offsets) - 1):
        begin = np.int64(offsets[row])
        while place < len(rows) and rows[place] == row:
            at = put_bytes(target, at, text, begin, starts[place])
            at = put_bytes(
                target, at, fresh, np.int64(new_offsets[place]), np.int64(new_offsets[place + 1])
            )
            begin = stops[place]
            place += 1
        at = put_bytes(target, at, text, begin, np.int64(offsets[row + 1]))
        out_offsets[row + 1] = at
    return at
