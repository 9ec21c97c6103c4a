"""The kernel that writes JSON objects anew with the members of inner objects as their own.

A text is read once into entries, keys that meet are settled, and the entries are written. A text in
which nothing is to be done is copied as it stands, as is one that is no object.
"""

import numpy as np

from airflow_provider_deltaforge.columns.bytes_kernel import pointer
from airflow_provider_deltaforge.columns.compiled import kernel
from airflow_provider_deltaforge.columns.json_column_kernel import put_bytes
from airflow_provider_deltaforge.columns.json_scan_kernel import OPEN_OBJECT, skip_space
from airflow_provider_deltaforge.processors.flatten.entry_kernel import (
    ENTRY,
    settle,
    write_members,
    written_size,
)
from airflow_provider_deltaforge.processors.flatten.reading_kernel import (
    COLLISION,
    MORE_ROOM,
    SPARE,
    TOO_DEEP,
    read_members,
)

COLLIDED, DEEP = 1, 2

BYTES_MAX = 2**31 - 1
"""As much as the offsets of a column can count."""


@kernel
def _longest(offsets):
    longest = np.int64(0)
    for row in range(len(offsets) - 1):
        longest = max(longest, np.int64(offsets[row + 1]) - np.int64(offsets[row]))
    return longest


@kernel
def flatten(
    data, offsets, present, options, separator, stack_bytes, frame_places, out_offsets, faults
):
    """Write every text of a column flat.

    Args:
        data: the column, see ``binary_columns.Parts``.
        offsets: the column.
        present: the column.
        options: see above.
        separator: uint8, as it stands in a JSON string.
        stack_bytes: uint8, from ``stack_for``.
        frame_places: int64, ``FRAME * DEPTH_MAX`` to work with.
        out_offsets: int32, rows + 1, filled.
        faults: uint8 per row, filled: 0; ``COLLIDED``, when two keys met and the row's text is
            their key; or ``DEEP``, when more is to be opened than ``DEPTH_MAX``.

    Returns:
        (uint8 array of the texts, bytes used or -1 if they are too many, rows changed).
    """
    limit = len(data)
    longest = _longest(offsets)
    text = pointer(data)
    places = np.empty(ENTRY * (longest // 2 + 2), np.int64)
    frames, stack, entries = pointer(frame_places), pointer(stack_bytes), pointer(places)
    keys = np.empty(2 * longest + 1024 + len(separator), np.uint8)
    table = np.full(256, -1, np.int64)
    out = np.empty(2 * (offsets[-1] - offsets[0]) + 1024, np.uint8)
    at = base = np.int64(0)
    changed = 0
    out_offsets[0] = 0
    for row in range(len(offsets) - 1):
        start, stop = np.int64(offsets[row]), np.int64(offsets[row + 1])
        faults[row] = 0
        begin = skip_space(text, start, stop)
        count, touched, clash = 0, False, -1
        if begin < stop and text[begin] == OPEN_OBJECT and (len(present) == 0 or present[row]):
            count, touched = read_members(
                text, begin, stop, limit, options, separator, keys, frames, stack, entries
            )
            while count == MORE_ROOM and len(keys) < 2 * BYTES_MAX:
                keys = np.empty(4 * len(keys), np.uint8)
                count, touched = read_members(
                    text, begin, stop, limit, options, separator, keys, frames, stack, entries
                )
            if count == MORE_ROOM:
                return out, np.int64(-1), changed
            if count == TOO_DEEP:
                faults[row] = DEEP
                changed += 1
        size = stop - start
        if touched:
            if 2 * count > len(table):
                table = np.full(1 << np.int64(np.ceil(np.log2(4 * count))), -1, np.int64)
            clash = settle(entries, count, pointer(keys), table, base, options[COLLISION])
            base += count
            size = written_size(entries, count)
            if clash >= 0:
                size = max(size, places[ENTRY * clash + 1] - places[ENTRY * clash])
        if at + size + SPARE > len(out):
            if at + size > BYTES_MAX:
                return out, np.int64(-1), changed
            larger = np.empty(2 * (at + size) + SPARE, np.uint8)
            larger[:at] = out[:at]
            out = larger
        if clash >= 0:
            faults[row] = COLLIDED
            first = places[ENTRY * clash]
            at = put_bytes(pointer(out), at, pointer(keys), first, places[ENTRY * clash + 1])
        elif touched:
            at = write_members(pointer(out), at, text, entries, count, pointer(keys))
        else:
            at = put_bytes(pointer(out), at, text, start, stop)
        changed += touched
        out_offsets[row + 1] = at
    return out, at, changed
