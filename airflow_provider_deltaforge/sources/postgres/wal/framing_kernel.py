"""The kernel that finds transactions and rows in the frames of a replication connection.

``scan`` walks complete frames: it understands transactions, rows and keepalives, and stops at
everything that Python has to look at. Rows are not decoded here, only found.
"""

import numpy as np

from airflow_provider_deltaforge.columns.compiled import kernel

# Results of ``scan``.
DONE, SPECIAL, FULL, REPORTED, ENDED, STRAY = range(6)

# The scanner's state, one int64 each: whether a transaction is open, how many transactions and
# rows the tables hold, where the open transaction's first frame begins, the index of its next
# row, how many of its leading rows to leave out, how far the server says it has read with
# nothing left to send, whether it wants an answer, and the end of what was received.
IN_TX, TX_COUNT, ROWS_COUNT, TX_AT, INDEX, SKIP, REACHED, ASKED, WRITTEN = range(9)
STATE_SIZE = 9

# Columns of the table of transactions: where the commit record ends (0 while open) and begins,
# the transaction's number, and its commit in ms since epoch.
TX_END, TX_COMMIT, TX_XID, TX_TIME = range(4)
TX_COLUMNS = 4

# Columns of the table of rows, as in ``segment``.
_START, _STOP, _KIND, _TX, _PLAN, _ROW_INDEX = range(6)

MESSAGE = 30
"""Bytes of a frame before the message of pgoutput: ``d``, length, ``w``, two LSNs, a clock."""

EPOCH_2000_US = 946_684_800_000_000
_HEAD = 5
_MIX = np.uint64(0x9E3779B97F4A7C15)


@kernel
def big(data, at, size):
    """Return ``size`` bytes at ``at`` as a big-endian int64."""
    value = np.int64(0)
    for i in range(size):
        value = (value << 8) | np.int64(data[at + i])
    return value


@kernel
def place_of(keys, oid):
    """Return where a relation is in the hash table, or the free place where it belongs."""
    mask = len(keys) - 1
    at = np.int64((np.uint64(oid) * _MIX) >> np.uint64(33)) & mask
    while keys[at] != -1 and keys[at] != oid:
        at = (at + 1) & mask
    return at


@kernel
def _begin(data, body, frame, state, transactions):
    ordinal = state[TX_COUNT]
    transactions[ordinal, TX_END] = 0
    transactions[ordinal, TX_COMMIT] = big(data, body + 1, 8)
    transactions[ordinal, TX_TIME] = (big(data, body + 9, 8) + EPOCH_2000_US) // 1000
    transactions[ordinal, TX_XID] = big(data, body + 17, 4)
    state[TX_COUNT] = ordinal + 1
    state[IN_TX] = 1
    state[TX_AT] = frame
    state[INDEX] = 0


@kernel
def _commit(data, body, state, transactions):
    transactions[state[TX_COUNT] - 1, TX_END] = big(data, body + 10, 8)
    state[IN_TX] = 0
    state[SKIP] = 0


@kernel
def _keepalive(data, frame, state):
    """Take note of a keepalive; inside a transaction it says nothing of what is complete."""
    reached = big(data, frame + _HEAD + 1, 8)
    state[WRITTEN] = max(state[WRITTEN], reached)
    if data[frame + _HEAD + 17]:
        state[ASKED] = 1
    if not state[IN_TX]:
        state[REACHED] = max(state[REACHED], reached)


@kernel
def _kind_of(letter):
    """Return a row message's kind as ``segment`` numbers it, or -1 for other messages."""
    if letter == 73:  # I
        return 0
    if letter == 85:  # U
        return 1
    if letter == 68:  # D
        return 2
    return -1


@kernel
def _add_row(data, body, stop, kind, state, rows, keys, plans):
    """Add a row to its table if somebody captures it; count it in any case."""
    if not state[IN_TX]:
        return STRAY
    oid = big(data, body + 1, 4)
    place = place_of(keys, oid)
    if keys[place] == -1:
        return STRAY
    index = state[INDEX]
    if plans[place] >= 0 and index >= state[SKIP]:
        ordinal = state[ROWS_COUNT]
        if ordinal >= len(rows):
            return FULL
        rows[ordinal, _START] = body + 5
        rows[ordinal, _STOP] = stop
        rows[ordinal, _KIND] = kind
        rows[ordinal, _TX] = state[TX_COUNT] - 1
        rows[ordinal, _PLAN] = plans[place]
        rows[ordinal, _ROW_INDEX] = index
        state[ROWS_COUNT] = ordinal + 1
    state[INDEX] = index + 1
    return DONE


@kernel
def scan(data, at, end, state, transactions, rows, keys, plans):
    """Walk the complete frames of ``data[at:end]`` and fill the tables of the segment.

    Args:
        data: uint8.
        at: where the first frame begins.
        end: behind the last byte received.
        state: int64, see above.
        transactions: int64 (transactions, TX_COLUMNS).
        rows: int64 (rows, 6), see ``segment``.
        keys: int64, hash table of relations by oid; -1 is free.
        plans: int64, the ordinal of each one's plan, -1 for a table nobody captures.

    Returns:
        (result, where the frame begins that it stopped at).
    """
    while at + _HEAD <= end:
        size = 1 + big(data, at + 1, 4)
        letter = data[at]
        if at + size > end:
            break
        if letter != 100:  # d
            if letter in {69, 78}:  # E, N: an error, a notice
                return REPORTED, at
            if letter in {99, 67}:  # c, C: it sends no more
                return ENDED, at
            at += size  # The start of the copy, a setting that changed.
            continue
        if data[at + _HEAD] == 107:  # k
            _keepalive(data, at, state)
            at += size
            continue
        if data[at + _HEAD] != 119:  # w
            return STRAY, at
        body = at + MESSAGE
        letter = data[body]
        kind = _kind_of(letter)
        if kind >= 0:
            result = _add_row(data, body, at + size, kind, state, rows, keys, plans)
            if result != DONE:
                return result, at
        elif letter == 66:  # B
            if state[IN_TX]:
                return STRAY, at
            if state[TX_COUNT] >= len(transactions):
                return FULL, at
            _begin(data, body, at, state, transactions)
        elif letter == 67:  # C
            if not state[IN_TX]:
                return STRAY, at
            _commit(data, body, state, transactions)
        elif letter != 79:  # O: an origin
            return SPECIAL, at
        state[WRITTEN] = max(state[WRITTEN], big(data, at + _HEAD + 1, 8))
        at += size
    return DONE, at


def precompile() -> None:
    """Compile what Python calls, or find it compiled."""
    tables = np.zeros((1, TX_COLUMNS), np.int64), np.zeros((1, 6), np.int64)
    relations = np.full(2, -1, np.int64), np.full(2, -1, np.int64)
    scan(np.zeros(0, np.uint8), 0, 0, np.zeros(STATE_SIZE, np.int64), *tables, *relations)
    big(np.zeros(8, np.uint8), 0, 8)
