"""Whatever the decoder hands over, batches keep every row, in order, and end where they may."""

import itertools

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_deltaforge.engine.read.batcher import Batcher, BatchLimits
from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA, ChangeBatch

ROW_BYTES = 100

logs = st.lists(st.integers(0, 12), min_size=1, max_size=25)
"""Rows of each transaction, in commit order; nobody captures the rows of an empty one."""

limits = st.builds(
    BatchLimits,
    max_events=st.integers(1, 30),
    max_bytes=st.integers(ROW_BYTES, 30 * ROW_BYTES),
    max_age_s=st.just(1.0),
    respect_source_tx=st.booleans(),
    max_transaction_bytes=st.integers(ROW_BYTES, 40 * ROW_BYTES),
)


class After:
    """Positions inside a decoded batch, as a source gives them."""

    def __init__(self, first):
        self._first = first

    def after(self, tx):
        return {"tx": self._first + tx}


@st.composite
def decoded(draw):
    """Return a log, and the decoded batches a source makes of it: cut anywhere."""
    log = draw(logs)
    flat = [(tx, row) for tx, size in enumerate(log) for row in range(size)]
    cuts = sorted({*draw(st.lists(st.integers(0, len(flat)), max_size=8)), 0, len(flat)})
    batches = [
        _batch(log, flat[start:stop], flat[stop] if stop < len(flat) else None, start == 0)
        for start, stop in itertools.pairwise(cuts)
    ]
    return log, batches


def _batch(log, rows, following, is_first):
    """Return rows as one decoded batch; ``following`` is the next row of the log."""
    first = 0 if is_first else rows[0][0]
    continues = not is_first and rows[0][1] > 0
    last = rows[-1][0]
    open_tx = following is not None and following[0] == last
    end = last - 1 if open_tx else (len(log) if following is None else following[0]) - 1
    told = [
        {
            "op": "c",
            "ts_ms": tx,
            "tx": tx - first,
            "row": row,
            "tx_end": row == log[tx] - 1,
            "event_id": bytes(16),
        }
        for tx, row in rows
    ]
    return ChangeBatch(
        rows=pa.RecordBatch.from_pylist(told, schema=CHANGE_SCHEMA),
        positions=After(first),
        end={"tx": end},
        connector="test",
        nbytes=len(rows) * ROW_BYTES,
        open_tx=open_tx,
        continues=continues,
    )


def _run(batches, limits, waits=None):
    batcher, out = Batcher(limits), []
    for index, batch in enumerate(batches):
        out += batcher.add(batch, float(index))
        if waits and waits[index % len(waits)]:
            out += [due] if (due := batcher.due(index + 1.0)) else []
    due = batcher.due(10.0**6)
    return out + ([due] if due else [])


def _names(batch):
    """Return the rows of a batch by transaction and place; ``ts_ms`` carries the transaction."""
    ts, row = (batch.rows.column(name).to_pylist() for name in ("ts_ms", "row"))
    return list(zip(ts, row, strict=True))


@settings(max_examples=120, deadline=None)
@given(decoded(), limits, st.lists(st.booleans(), max_size=4))
def test_every_row_comes_out_once_and_in_order(told, limits, waits):
    log, batches = told
    out = _run(batches, limits, waits)

    wanted = [(tx, row) for tx, size in enumerate(log) for row in range(size)]
    assert [name for batch in out for name in _names(batch)] == wanted


@settings(max_examples=120, deadline=None)
@given(decoded(), limits, st.lists(st.booleans(), max_size=4))
def test_a_position_is_never_inside_a_transaction_and_never_behind_its_rows(told, limits, waits):
    log, batches = told
    reached = -1
    given_out = 0
    for batch in _run(batches, limits, waits):
        names = _names(batch)
        given_out += len(names)
        if batch.position is None:
            last, row = names[-1]
            assert row < log[last] - 1
            assert batch.splits_transaction
            continue
        at = batch.position["tx"]
        assert reached <= at
        # Exactly the rows of the transactions up to the position have come out by now.
        assert given_out == sum(log[: at + 1])
        reached = at
    assert reached == len(log) - 1 or not sum(log[reached + 1 :])


@settings(max_examples=120, deadline=None)
@given(decoded(), limits)
def test_only_a_transaction_beyond_its_limit_is_split_when_they_are_respected(told, limits):
    log, batches = told
    out = _run(batches, limits)
    split = {_names(batch)[-1][0] for batch in out if batch.position is None}

    if limits.respect_source_tx:
        for tx in split:
            assert log[tx] * ROW_BYTES > limits.max_transaction_bytes
    for batch in out:
        # The end of a transaction is told on its last row, and nowhere else.
        ends = batch.rows.column("tx_end").to_pylist()
        assert ends == [row == log[tx] - 1 for tx, row in _names(batch)]


@settings(max_examples=120, deadline=None)
@given(decoded(), limits)
def test_no_transaction_makes_a_batch_grow_without_bound(told, limits):
    _, batches = told
    fits = min(limits.max_bytes, limits.max_events * ROW_BYTES)
    for batch in _run(batches, limits):
        most = limits.max_transaction_bytes + max(limits.max_transaction_bytes, fits)
        assert batch.nbytes <= most


@settings(max_examples=120, deadline=None)
@given(decoded(), limits)
def test_a_batch_of_several_transactions_keeps_within_its_limits(told, limits):
    _, batches = told
    for batch in _run(batches, limits):
        names = _names(batch)
        several = len({tx for tx, _ in names}) > 1
        if several or not limits.respect_source_tx:
            assert len(names) <= limits.max_events
            assert batch.nbytes <= limits.max_bytes


def test_the_last_captured_row_ends_a_transaction_whose_rest_nobody_captures():
    batcher = Batcher(BatchLimits(max_events=100, max_bytes=10**6, max_age_s=1.0))
    assert list(batcher.add(_batch([4], [(0, 0), (0, 1)], (0, 2), is_first=True), 0.0)) == []
    nothing = pa.RecordBatch.from_pylist([], schema=CHANGE_SCHEMA)
    rest = ChangeBatch(nothing, After(0), {"tx": 0}, "test", 0, continues=True)
    assert list(batcher.add(rest, 0.5)) == []

    due = batcher.due(1.0)
    assert due.position == {"tx": 0}
    assert due.rows.column("tx_end").to_pylist() == [False, True]
