"""How a lane ends: what it was asked to do, what it could not do, and what it leaves behind."""

import threading
import time

import pyarrow as pa
import pytest

from airflow_provider_deltaforge.engine.base.heartbeat import Heartbeat
from airflow_provider_deltaforge.engine.base.outcome import Outcome
from airflow_provider_deltaforge.engine.catch_up.table_watch import TableWatch
from airflow_provider_deltaforge.engine.lane.lane import Lane
from airflow_provider_deltaforge.errors import AccessError, RetryableError, TableError
from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA, ChangeBatch
from airflow_provider_deltaforge.sources.scripted import ScriptedSource
from airflow_provider_deltaforge.storage.records.control import Control
from tests.engine.in_process import InProcess
from tests.waiting import PATIENCE_S, wait_until


class _Running:
    """A lane in a thread."""

    def __init__(self, pipeline, window_s=60.0):
        self.outcome = None
        self.lane = Lane(pipeline.context(), window_s)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        self.outcome = self.lane.run()

    def end(self):
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the lane did not end"
        return self.outcome


def test_a_lane_delivers_and_stops_when_asked():
    pipeline = InProcess()
    pipeline.begin_at(out=0)
    running = _Running(pipeline)
    wait_until(lambda: pipeline.checkpoints().load()["out"] == {"tx": 20})
    pipeline.want("stopped")
    assert running.end().why == "stopped"
    assert len(pipeline.log().messages()) == 60
    assert pipeline.status() == ("stopped", None)
    progress = pipeline.control.progress()
    assert {name: table.durable for name, table in progress.tables.items()} == {"script.rows": 60}
    assert (progress.has_ended, progress.count_gaps) == (True, 0)


def test_a_window_that_is_over_leaves_no_batch_unanswered():
    pipeline = InProcess()
    pipeline.begin_at(out=0)
    pipeline.log().fail_next(10_000, RetryableError("away"))
    running = _Running(pipeline, window_s=2.0)

    # What its sink had sent could arrive behind what the next lane's sink sends.
    time.sleep(5)
    assert running.outcome is None
    pipeline.log().heal()

    assert running.end().why == "window"
    assert len(pipeline.log().messages()) > 0
    assert pipeline.checkpoints().load()["out"]["tx"] > 0


@pytest.mark.parametrize("desired", ["paused", "stopped"])
def test_a_lane_asked_to_end_while_a_sink_is_away_ends_as_asked_and_not_as_failed(desired):
    pipeline = InProcess()
    pipeline.begin_at(out=0)
    pipeline.log().fail_next(10_000, RetryableError("away"))
    running = _Running(pipeline)
    wait_until(lambda: pipeline.status()[0] == "blocked")
    pipeline.want(desired)
    assert running.end().why == desired
    assert pipeline.status() == (desired, None)
    pipeline.log().clear()


def test_a_lane_asked_to_end_while_the_source_is_away_ends_as_asked(monkeypatch):
    pipeline = InProcess()
    pipeline.begin_at(out=0)
    failed = threading.Event()

    def away(*_):
        failed.set()
        raise RetryableError("the server is away")

    monkeypatch.setattr(ScriptedSource, "open", away)
    running = _Running(pipeline)
    assert failed.wait(PATIENCE_S)
    pipeline.want("paused")
    assert running.end().why == "paused"


def test_a_log_is_closed_before_it_is_opened_again(monkeypatch):
    pipeline = InProcess()
    pipeline.begin_at(out=0)
    told, open_log, begin = [], ScriptedSource.open, TableWatch.begin

    def opened(*given):
        reader = open_log(*given)
        told.append("opened")
        close = reader.close
        monkeypatch.setattr(reader, "close", lambda: (told.append("closed"), close()))
        return reader

    def away_once(tables, reader):
        if told == ["opened"]:
            raise RetryableError("the state store is away")
        begin(tables, reader)

    monkeypatch.setattr(ScriptedSource, "open", opened)
    monkeypatch.setattr(TableWatch, "begin", away_once)
    running = _Running(pipeline)
    wait_until(lambda: pipeline.checkpoints().load()["out"]["tx"] == 20)
    pipeline.want("stopped")
    assert running.end().why == "stopped"
    assert told == ["opened", "closed", "opened", "closed"]


def test_a_lane_that_is_fenced_before_its_first_heartbeat_says_so():
    pipeline = InProcess()
    context = pipeline.context()
    pipeline.control.take_epoch("newer")
    assert Lane(context, 60.0).run().why == "fenced"


def test_a_lane_whose_heartbeat_fails_for_good_ends_with_the_reason(monkeypatch):
    pipeline = InProcess()
    pipeline.begin_at(out=0)
    running = _Running(pipeline)
    wait_until(lambda: pipeline.checkpoints().load()["out"] == {"tx": 20})
    monkeypatch.setattr(running.lane._context.control, "__class__", _Refusing)
    outcome = running.end()
    assert (outcome.why, outcome.error_class) == ("failed", "access")
    assert "refuses us" in outcome.reason


class _Refusing(Control):
    """A control whose record can no longer be read."""

    def read(self):
        raise AccessError("the state store refuses us")


def test_a_late_heartbeat_does_not_overwrite_the_last_word(monkeypatch):
    pipeline = InProcess()
    context = pipeline.context()
    lane = Lane(context, 60.0)
    heartbeat: Heartbeat = lane._heartbeat
    heartbeat.start()
    held, go = threading.Event(), threading.Event()
    real = context.store.transact

    def slow(writes, fence=None):
        if threading.current_thread().name == "heartbeat":
            held.set()
            go.wait(PATIENCE_S)
        real(writes, fence)

    monkeypatch.setattr(context.store, "transact", slow)
    assert held.wait(PATIENCE_S)
    ending = threading.Thread(target=heartbeat.finish, args=(Outcome("stopped"),))
    ending.start()
    time.sleep(1.5)  # Longer than the patience with the heartbeat thread.
    go.set()
    ending.join(PATIENCE_S)
    heartbeat._thread.join(PATIENCE_S)
    assert pipeline.status() == ("stopped", None)


def test_a_removed_sink_does_not_hide_the_position():
    pipeline = InProcess()
    pipeline.begin_at(out=0)
    context = pipeline.context()
    heartbeat = Lane(context, 60.0)._heartbeat
    heartbeat._stats.sinks.setdefault("gone", type(heartbeat._stats.sinks["out"])())
    heartbeat._beat(None)
    running = _Running(pipeline)
    wait_until(lambda: pipeline.checkpoints().load()["out"] == {"tx": 20})
    pipeline.want("stopped")
    running.end()
    progress = pipeline.control.progress()
    assert progress.position == {"tx": 20}
    assert set(progress.sinks) == {"out"}


class _SplitReader:
    """A log whose transaction 5 arrives in two parts, and 6 whole."""

    def __init__(self):
        self.acknowledged = []
        self._parts = [
            self._part(5, [1, 2], open_tx=True),
            self._part(5, [1], continues=True),
            self._part(6, [3]),
        ]

    def _part(self, tx, keys, **flags):
        rows = [
            {
                "op": "u",
                "db": "script",
                "table": "rows",
                "after": b'{"id":%d,"tx":%d}' % (key, tx),
                "key": b'{"id":%d}' % key,
                "ts_ms": 0,
                "tx": 0,
                "row": row,
                "tx_end": not flags.get("open_tx") and row == len(keys) - 1,
                "event_id": bytes(16),
            }
            for row, key in enumerate(keys)
        ]
        end = tx - 1 if flags.get("open_tx") else tx
        batch = pa.RecordBatch.from_pylist(rows, schema=CHANGE_SCHEMA)
        return ChangeBatch(batch, _After(tx), {"tx": end}, "scripted", 10**6, **flags)

    def read(self, timeout_s):
        if self._parts:
            return self._parts.pop(0)
        time.sleep(timeout_s)
        return None

    def decode(self, chunk):
        return chunk

    def acknowledge(self, position):
        self.acknowledged.append(position)

    def close(self):
        """Nothing is held."""


class _After:
    def __init__(self, tx):
        self._tx = tx

    def after(self, _):
        return {"tx": self._tx}


def test_a_sink_ahead_gets_all_or_nothing_of_a_transaction_that_is_split(monkeypatch):
    pipeline = InProcess(sinks=("ahead", "behind"), batch="max_transaction_bytes: 1, ")
    pipeline.begin_at(ahead=5, behind=4)
    monkeypatch.setattr(ScriptedSource, "open", lambda *_: _SplitReader())
    running = _Running(pipeline)
    wait_until(lambda: set(map(str, pipeline.checkpoints().load().values())) == {"{'tx': 6}"})
    pipeline.want("stopped")
    assert running.end().why == "stopped"
    keys = [message.key for message in pipeline.log("behind").messages()]
    assert keys == [b'{"id":1}', b'{"id":2}', b'{"id":1}', b'{"id":3}']
    # Its first part alone would be the last that this sink hears of key 1, an older state.
    again = [message.key for message in pipeline.log("ahead").messages()]
    assert again in ([b'{"id":3}'], keys)


class _IdleReader:
    """A log of transactions without events for us; then it fails, or goes on for ever."""

    def __init__(self, ends, quiet_reads=0, failure=None):
        self.acknowledged = []
        self._ends = list(ends)
        self._quiet_reads = quiet_reads
        self._failure = failure

    def read(self, timeout_s):
        if self._quiet_reads:
            self._quiet_reads -= 1
            time.sleep(timeout_s)
            return None
        if self._ends:
            end = self._ends.pop(0)
            nothing = pa.RecordBatch.from_pylist([], schema=CHANGE_SCHEMA)
            return ChangeBatch(nothing, _After(end), {"tx": end}, "scripted", 0)
        if self._failure is not None:
            raise self._failure
        time.sleep(timeout_s)
        return None

    is_caught_up = True

    def decode(self, chunk):
        return chunk

    def skip_tables(self, tables):
        self.left_out = tables

    def acknowledge(self, position):
        self.acknowledged.append(position)

    def close(self):
        """Nothing is held."""


def test_a_log_that_is_read_again_leaves_no_idle_position_of_before(monkeypatch):
    pipeline = InProcess()
    pipeline.begin_at(out=0)
    first = _IdleReader([5], failure=TableError("no names", "script.rows"))
    # Read again, it is quiet for longer than a checkpoint waits, then tells of what came before.
    readers = [first, _IdleReader([3], quiet_reads=8)]
    monkeypatch.setattr(ScriptedSource, "open", lambda *_: readers.pop(0))
    monkeypatch.setattr(ScriptedSource, "on_undecodable", "stop_table", raising=False)
    running = _Running(pipeline)
    wait_until(lambda: pipeline.checkpoints().load()["out"] != {"tx": 0})
    assert pipeline.checkpoints().load()["out"] == {"tx": 3}
    pipeline.want("stopped")
    assert running.end().why == "stopped"
