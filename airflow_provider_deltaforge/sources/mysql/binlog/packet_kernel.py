"""The kernel that finds events in the bytes of a dump.

``frame`` walks protocol packets, joins events that were split at 16 MB and strips checksums.
"""

import numpy as np

from airflow_provider_deltaforge.columns.json_text_kernel import kernel
from airflow_provider_deltaforge.sources.mysql.binlog.framing_kernel import (
    FORMAT,
    PAYLOAD,
    ROTATE,
    little,
)

# Results of ``frame``.
NEED_MORE, SERVER_ERROR, SERVER_EOF, STOPPED = 0, 1, 2, 3

_PACKET_MAX = 0xFFFFFF


@kernel
def _event_size(raw, start, stop):
    """Return the payload size of the possibly split packet at ``start``, or -1 if incomplete."""
    size = np.int64(0)
    at = start
    while True:
        if at + 4 > stop:
            return np.int64(-1)
        length = little(raw, at, 3)
        if at + 4 + length > stop:
            return np.int64(-1)
        size += length
        if length < _PACKET_MAX:
            return size
        at += 4 + length


@kernel
def packet_size(raw, start, stop):
    """Return the size of the packet at ``start``, joined if it was split; 0 if incomplete."""
    return max(_event_size(raw, start, stop), 0)


@kernel
def frame(raw, start, stop, out, at, starts, count, checksum):
    """Copy the complete events of ``raw[start:stop]`` to ``out``, one behind the other.

    Args:
        raw: what the socket gave: packets of length (3 bytes), sequence (1), payload.
        start: first byte not yet framed.
        stop: end of what was received.
        out: receives events, each from its header on.
        at: where to write in ``out``.
        starts: receives the end of each event at ``count + 1``; ``starts[0]`` is the first's start.
        count: events already there.
        checksum: bytes to strip at the end of each event, 0 or 4.

    Returns:
        (result, next start, next at, next count). ``STOPPED`` follows an event that changes
        what comes behind it (rotation, format, compression), or a full output; the caller sees
        to it and calls again.
    """
    while start < stop:
        size = _event_size(raw, start, stop)
        if size < 0:
            return NEED_MORE, start, at, count
        marker = raw[start + 4]
        if marker == 0xFF:
            return SERVER_ERROR, start, at, count
        if marker == 0xFE and size < 9:
            return SERVER_EOF, start, at, count
        if count + 2 > len(starts) or at + size > len(out):
            return STOPPED, start, at, count
        kind = raw[start + 9]
        strip = 4 if kind == FORMAT else checksum
        end = at
        skip = 1
        while True:
            length = little(raw, start, 3)
            out[end : end + length - skip] = raw[start + 4 + skip : start + 4 + length]
            end += length - skip
            start += 4 + length
            skip = 0
            if length < _PACKET_MAX:
                break
        at = end - strip
        count += 1
        starts[count] = at
        if kind in (FORMAT, ROTATE, PAYLOAD) or 165 <= kind <= 171:
            return STOPPED, start, at, count
    return NEED_MORE, start, at, count
