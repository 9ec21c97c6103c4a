"""The kernels that find events in the bytes of a dump, and transactions in events.

``frame`` walks protocol packets, joins events that were split at 16 MB and strips checksums.
``scan`` walks events: it understands transactions, table maps and row events, and stops at
everything that Python handles. Rows are not decoded here.
"""

import numpy as np

from airflow_provider_deltaforge.columns.json_text_kernel import kernel
from airflow_provider_deltaforge.sources.mysql.positions import (
    TX_NUMBER,
    TX_ORIGIN,
    TX_SERVER,
    TX_START,
    TX_STOP,
    TX_TIME,
)

HEADER = 19

QUERY, ROTATE, FORMAT, XID, EXECUTE_LOAD, TABLE_MAP = 2, 4, 15, 16, 18, 19
INCIDENT, GTID, ANONYMOUS_GTID, XA_PREPARE = 26, 33, 34, 38
PARTIAL_UPDATE, PAYLOAD, GTID_TAGGED = 39, 40, 42
MARIADB_GTID, MARIADB_QUERY_COMPRESSED = 162, 165

# Results of ``frame``.
NEED_MORE, SERVER_ERROR, SERVER_EOF, STOPPED = 0, 1, 2, 3
# Results of ``scan``.
DONE, SPECIAL, UNKNOWN_ORIGIN, FULL, NO_TABLE_MAP = 0, 1, 2, 3, 4

# The scanner's state, one int64 each.
IN_TX, TX_COUNT, ROWS_COUNT, MAPS_COUNT, POS, TX_MAPS, STANDALONE, TX_EVENT, BEGUN = range(9)
STATE_SIZE = 9

# Columns of the table of row events; the map is an ordinal in the table of table maps.
ROW_START, ROW_STOP, ROW_KIND, ROW_TX, ROW_MAP, ROW_EVENT = range(6)
ROW_COLUMNS = 6
# Columns of the table of table maps: body after its flags, table id, hash of the body, event.
MAP_START, MAP_STOP, MAP_TABLE, MAP_HASH, MAP_EVENT = range(5)
MAP_COLUMNS = 5

# A partial update's JSON columns may hold what changed in them only.
WRITE, UPDATE, DELETE, PARTIAL = 0, 1, 2, 3

_PACKET_MAX = 0xFFFFFF
_BEGIN = np.frombuffer(b"BEGIN", np.uint8)
_COMMIT = np.frombuffer(b"COMMIT", np.uint8)
_END_OF_STATEMENT_ONLY = 0x00FFFFFF

# What ``scan`` may pass over: events that carry no data of ours. Everything unknown is special.
_IGNORED = np.zeros(256, np.bool_)
for _type in (0, 3, 5, 9, 13, 14, 17, 27, 28, 29, 35, 36, 37, 41, 160, 161, 163):
    _IGNORED[_type] = True


@kernel
def little(data, at, size):
    """Return ``size`` (up to 8) bytes at ``at`` as a little-endian int64."""
    value = np.int64(0)
    for i in range(size):
        value |= np.int64(data[at + i]) << (8 * i)
    return value


@kernel
def hash_bytes(data, start, stop):
    """Return a 64-bit hash of ``data[start:stop]`` as an int64, to find repeated table maps."""
    value = np.uint64(0xCBF29CE484222325) ^ np.uint64(stop - start)
    prime = np.uint64(0x9E3779B97F4A7C15)
    at = start
    while at + 8 <= stop:
        value = (value ^ np.uint64(little(data, at, 8))) * prime
        value ^= value >> np.uint64(29)
        at += 8
    value = (value ^ np.uint64(little(data, at, stop - at))) * prime
    value ^= value >> np.uint64(32)
    return np.int64(value)


@kernel
def _origin_of(data, at, origins):
    """Return the ordinal of the 16 bytes at ``at`` among the known origins, or -1."""
    for i in range(len(origins) - 1, -1, -1):
        same = True
        for j in range(16):
            if origins[i, j] != data[at + j]:
                same = False
                break
        if same:
            return i
    return -1


@kernel
def _mariadb_origin(data, start, body, origins):
    """Return the same for MariaDB: domain id (4 bytes), server id (4 bytes), padded with zeros."""
    for i in range(len(origins) - 1, -1, -1):
        same = True
        for j in range(4):
            if origins[i, j] != data[body + 8 + j] or origins[i, 4 + j] != data[start + 5 + j]:
                same = False
                break
        if same:
            return i
    return -1


@kernel
def _commit_time(data, body, stop, seconds):
    """Return the original commit time of a GTID event in ms; the header's time if it has none."""
    if stop - body < 49:
        return seconds * 1000
    micros = little(data, body + 42, 7)
    if micros & (np.int64(1) << 55):
        if stop - body < 56:
            return seconds * 1000
        micros = little(data, body + 49, 7)
    return micros // 1000


@kernel
def _is_query(data, body, stop, text):
    """Return whether a QUERY event's statement is exactly ``text``."""
    begin = body + 13 + np.int64(data[body + 8]) + little(data, body + 11, 2) + 1
    if stop - begin != len(text):
        return False
    for i in range(len(text)):
        if data[begin + i] != text[i]:
            return False
    return True


@kernel
def advance(state, log_pos):
    """Move the position to an event's end; the log's own field wraps at 4 GiB."""
    pos = state[POS]
    moved = (pos & ~np.int64(0xFFFFFFFF)) | log_pos
    if moved < pos:
        moved += np.int64(1) << 32
    state[POS] = moved


@kernel
def begin_tx(state, table, origin, number, time_ms, server, start, event):
    """Add a transaction to the table."""
    ordinal = state[TX_COUNT]
    table[ordinal, TX_ORIGIN] = origin
    table[ordinal, TX_NUMBER] = number
    table[ordinal, TX_TIME] = time_ms
    table[ordinal, TX_START] = start
    table[ordinal, TX_STOP] = -1
    table[ordinal, TX_SERVER] = server
    state[TX_COUNT] = ordinal + 1
    state[IN_TX] = 1
    state[TX_MAPS] = state[MAPS_COUNT]
    state[TX_EVENT] = event
    state[STANDALONE] = 0
    state[BEGUN] = 0


@kernel
def end_tx(state, table):
    """Close the open transaction at the current position."""
    table[state[TX_COUNT] - 1, TX_STOP] = state[POS]
    state[IN_TX] = 0


@kernel
def _add_map(data, body, stop, index, state, maps):
    """Add a table map to its table."""
    ordinal = state[MAPS_COUNT]
    maps[ordinal, MAP_START] = body + 8
    maps[ordinal, MAP_STOP] = stop
    maps[ordinal, MAP_TABLE] = little(data, body, 6)
    maps[ordinal, MAP_HASH] = hash_bytes(data, body + 8, stop)
    maps[ordinal, MAP_EVENT] = index
    state[MAPS_COUNT] = ordinal + 1


@kernel
def _add_rows(data, body, stop, index, kind, state, rows, maps):
    """Add a row event to its table; return whether its table map was found."""
    table_id = little(data, body, 6)
    if table_id == _END_OF_STATEMENT_ONLY:
        return True
    found = state[MAPS_COUNT] - 1
    while found >= state[TX_MAPS] and maps[found, MAP_TABLE] != table_id:
        found -= 1
    if found < state[TX_MAPS] or state[IN_TX] == 0:
        return False
    at = body + 8
    if kind >= 30:
        at += little(data, at, 2)
    ordinal = state[ROWS_COUNT]
    rows[ordinal, ROW_START] = at
    rows[ordinal, ROW_STOP] = stop
    if kind == PARTIAL_UPDATE:
        rows[ordinal, ROW_KIND] = PARTIAL
    else:
        rows[ordinal, ROW_KIND] = (kind - 23) if kind < 30 else (kind - 30)
    rows[ordinal, ROW_TX] = state[TX_COUNT] - 1
    rows[ordinal, ROW_MAP] = found
    rows[ordinal, ROW_EVENT] = index
    state[ROWS_COUNT] = ordinal + 1
    return True


@kernel
def scan(data, starts, index, count, state, origins, transactions, rows, maps):
    """Walk events ``index`` to ``count`` and fill the tables of the segment.

    Returns:
        (result, index of the event it stopped at).
    """
    while index < count:
        start = starts[index]
        stop = starts[index + 1]
        body = start + HEADER
        kind = data[start + 4]
        log_pos = little(data, start + 13, 4)
        if log_pos and kind not in (27, 41):
            advance(state, log_pos)
        before = state[POS] - little(data, start + 9, 4)
        if _IGNORED[kind]:
            index += 1
            continue
        if state[TX_COUNT] >= len(transactions) or state[ROWS_COUNT] >= len(rows):
            return FULL, index
        if state[MAPS_COUNT] >= len(maps):
            return FULL, index
        seconds = little(data, start, 4)
        server = little(data, start + 5, 4)
        if state[IN_TX] and kind in (GTID, ANONYMOUS_GTID, MARIADB_GTID):
            return SPECIAL, index
        if kind in (GTID, ANONYMOUS_GTID):
            origin = np.int64(-1)
            if kind == GTID:
                origin = np.int64(_origin_of(data, body + 1, origins))
                if origin < 0:
                    return UNKNOWN_ORIGIN, index
            number = little(data, body + 17, 8) if kind == GTID else np.int64(0)
            time_ms = _commit_time(data, body, stop, seconds)
            begin_tx(state, transactions, origin, number, time_ms, server, before, index)
        elif kind == MARIADB_GTID:
            origin = np.int64(_mariadb_origin(data, start, body, origins))
            if origin < 0:
                return UNKNOWN_ORIGIN, index
            if data[body + 12] & 0xC0:
                return SPECIAL, index
            number = little(data, body, 8)
            begin_tx(state, transactions, origin, number, seconds * 1000, server, before, index)
            state[STANDALONE] = np.int64(data[body + 12] & 1)
        elif kind == QUERY:
            if _is_query(data, body, stop, _BEGIN):
                if state[IN_TX] == 0:
                    time_ms = seconds * 1000
                    begin_tx(state, transactions, -1, 0, time_ms, server, before, index)
                state[BEGUN] = 1
            elif _is_query(data, body, stop, _COMMIT) and state[IN_TX]:
                end_tx(state, transactions)
            else:
                return SPECIAL, index
        elif kind == XID:
            if state[IN_TX]:
                end_tx(state, transactions)
        elif kind == TABLE_MAP:
            _add_map(data, body, stop, index, state, maps)
        elif 23 <= kind <= 25 or 30 <= kind <= 32 or kind == PARTIAL_UPDATE:
            if not _add_rows(data, body, stop, index, kind, state, rows, maps):
                return NO_TABLE_MAP, index
        else:
            return SPECIAL, index
        index += 1
    return DONE, index


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
        raw: received bytes: packets of length (3 bytes), sequence (1), payload.
        start: first byte not yet framed.
        stop: end of what was received.
        out: where events go, each from its header on.
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
