"""Kernels that read a JSON object into flat entries: a key, and where its value lies."""

import numpy as np

from airflow_provider_deltaforge.columns.bytes_kernel import pointer
from airflow_provider_deltaforge.columns.compiled import kernel
from airflow_provider_deltaforge.columns.json_column_kernel import put_bytes
from airflow_provider_deltaforge.columns.json_scan_kernel import (
    ARRAY,
    BACKSLASH,
    CLOSE_ARRAY,
    CLOSE_OBJECT,
    COMMA,
    DEPTH_MAX,
    KIND_OF,
    OBJECT,
    QUOTE,
    read_escape,
    skip_key,
    skip_number,
    skip_space,
    skip_string,
    skip_value,
    utf8_byte,
    utf8_width,
)
from airflow_provider_deltaforge.columns.marks import UNCHANGED
from airflow_provider_deltaforge.processors.flatten.entry_kernel import ENTRY

PRESERVE, DROP, SET_NULL = range(3)
MAX_DEPTH, LISTS, EMPTY_OBJECT, EMPTY_LIST, COLLISION, OPTION_COUNT = range(6)
"""Places in ``options``, int64: the depth or -1; 1 to open arrays; three of the policies above."""

BROKEN, MORE_ROOM, TOO_DEEP = -1, -2, -3
FRAME = 4  # Of each open container: its kind, where its key begins and ends, elements before.
SPARE = 64

_BASE64 = np.frombuffer(b'{"_base64":', np.uint8)
_UNCHANGED = np.frombuffer(UNCHANGED, np.uint8)
_SRID = np.frombuffer(b'{"srid":', np.uint8)
_INNER_BASE64 = np.frombuffer(b',"_base64":', np.uint8)
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)


@kernel
def _begins_with(data, at, stop, wanted):
    if at + len(wanted) > stop:
        return False
    for i in range(len(wanted)):
        if data[at + i] != wanted[i]:
            return False
    return True


@kernel
def _ends_with_string(data, at, stop, limit):
    """Return whether a string is here and a closing brace behind it."""
    if at >= stop or data[at] != QUOTE:
        return False
    at, _ = skip_string(data, at + 1, stop, limit)
    return 0 <= at < stop and data[at] == CLOSE_OBJECT


@kernel
def _is_one_value(data, at, stop, limit):
    """Return whether an object is how sources write bytes, geometry, or a value not sent."""
    if at + 2 >= stop:
        return False
    if data[at + 2] == 95:
        if _begins_with(data, at, stop, _BASE64):
            return _ends_with_string(data, at + len(_BASE64), stop, limit)
        return _begins_with(data, at, stop, _UNCHANGED)
    if data[at + 2] != 115 or not _begins_with(data, at, stop, _SRID):
        return False
    at += len(_SRID)
    at = skip_number(data, at, stop) if at < stop else np.int64(-1)
    if at < 0 or not _begins_with(data, at, stop, _INNER_BASE64):
        return False
    return _ends_with_string(data, at + len(_INNER_BASE64), stop, limit)


@kernel
def _put_index(out, at, number):
    digits = 1
    rest = number
    while rest > 9:
        rest //= 10
        digits += 1
    for i in range(digits):
        out[at + digits - 1 - i] = 48 + number % 10
        number //= 10
    return at + digits


@kernel
def _put_plain_key(out, at, data, begin, end):
    """Append a key that has escapes with none but those it needs, so that equal keys look equal."""
    while begin < end:
        if data[begin] != BACKSLASH:
            out[at] = data[begin]
            at += 1
            begin += 1
            continue
        code, begin = read_escape(data, begin, end)
        if code == QUOTE or code == BACKSLASH:
            out[at] = BACKSLASH
            at += 1
        if code < 32:
            out[at], out[at + 1], out[at + 2], out[at + 3] = BACKSLASH, 117, 48, 48
            out[at + 4], out[at + 5] = _HEX[code >> 4], _HEX[code & 15]
            at += 6
        else:
            width = utf8_width(code)
            for i in range(width):
                out[at + i] = utf8_byte(code, width, i)
            at += width
    return at


@kernel
def read_members(data, at, stop, limit, options, separator, keys, frames, stack, entries):
    """Read an object into entries.

    Args:
        data: see ``json_scan_kernel``.
        at: offset of its brace.
        stop: see ``json_scan_kernel``.
        limit: see ``json_scan_kernel``.
        options: see above.
        separator: uint8, as it stands in a JSON string.
        keys: uint8, receives the entries' keys, without quotes.
        frames: pointer to ``FRAME * DEPTH_MAX`` int64 to work with.
        stack: see ``json_scan_kernel``.
        entries: pointer to as many as there can be.

    Returns:
        (number of entries, whether the text must change), or (``BROKEN``, ``MORE_ROOM`` or
        ``TOO_DEEP``, False)
    """
    level = count = 0
    used = np.int64(0)
    room = len(keys) - SPARE - len(separator)
    out, between = pointer(keys), pointer(separator)
    touched = False
    frames[0], frames[1], frames[2], frames[3] = OBJECT, 0, 0, 0
    at = skip_space(data, at + 1, stop)
    if at < stop and data[at] == CLOSE_OBJECT:
        return 0, False
    while True:
        frame = FRAME * level
        begin = used
        value = part = end = at
        escaped = False
        if frames[frame] == OBJECT:
            end, value, escaped = skip_key(data, at, stop, limit)
            if end < 0:
                return BROKEN, False
            part += 1
            end -= 1
        if value >= stop:
            return BROKEN, False
        if used + frames[frame + 2] - frames[frame + 1] + 6 * (end - part) > room:
            return MORE_ROOM, False
        if level:
            used = put_bytes(out, used, out, frames[frame + 1], frames[frame + 2])
            used = put_bytes(out, used, between, 0, len(separator))
        if frames[frame] == ARRAY:
            used = _put_index(out, used, frames[frame + 3])
        elif escaped:
            used = _put_plain_key(out, used, data, part, end)
        else:
            used = put_bytes(out, used, data, part, end)
        policy = PRESERVE
        kind = KIND_OF[data[value]]
        if kind == OBJECT or kind == ARRAY:
            at = skip_space(data, value + 1, stop)
            opened = options[MAX_DEPTH] < 0 or level < options[MAX_DEPTH]
            if at < stop and data[at] == (CLOSE_OBJECT if kind == OBJECT else CLOSE_ARRAY):
                policy = options[EMPTY_OBJECT] if kind == OBJECT else options[EMPTY_LIST]
                opened = False
            elif kind == OBJECT:
                opened = opened and not _is_one_value(data, value, stop, limit)
            else:
                opened = opened and options[LISTS] == 1
            if opened:
                level += 1
                if level == DEPTH_MAX:
                    return TOO_DEEP, False
                frame = FRAME * level
                frames[frame], frames[frame + 3] = kind, 0
                frames[frame + 1], frames[frame + 2] = begin, used
                touched = True
                continue
        at = skip_value(data, value, stop, limit, stack)
        if at < 0:
            return BROKEN, False
        touched = touched or policy != PRESERVE
        if policy == DROP:
            used = begin
        else:
            entry = ENTRY * count
            entries[entry], entries[entry + 1] = begin, used
            entries[entry + 2] = value if policy == PRESERVE else np.int64(-1)
            entries[entry + 3] = at
            count += 1
        at, level = _behind_value(data, at, stop, frames, level)
        if level < 0:
            return (count, touched) if at >= 0 else (BROKEN, False)


@kernel
def _behind_value(data, at, stop, frames, level):
    """Return (offset of the next member, its level); level -1 at the end, offset -1 if broken."""
    while True:
        at = skip_space(data, at, stop)
        if at >= stop:
            return np.int64(-1), -1
        byte = data[at]
        at += 1
        if byte == COMMA:
            frames[FRAME * level + 3] += 1
            return skip_space(data, at, stop), level
        if byte != (CLOSE_OBJECT if frames[FRAME * level] == OBJECT else CLOSE_ARRAY):
            return np.int64(-1), -1
        level -= 1
        if level < 0:
            return (at if skip_space(data, at, stop) == stop else np.int64(-1)), -1
