"""A sink that holds the position itself wins over its checkpoint, and is given nothing twice."""

import threading

import orjson
import pytest

from airflow_provider_deltaforge.control import pipelines, sinks
from airflow_provider_deltaforge.engine.base.tuning import Tuning
from airflow_provider_deltaforge.engine.lane.lane import Lane
from airflow_provider_deltaforge.errors import PositionLostError, RetryableError
from airflow_provider_deltaforge.sources.scripted import ScriptedSource
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.contract import Delete
from airflow_provider_deltaforge.storage.records.dead_letters import DeadLetterRecords
from airflow_provider_deltaforge.storage.records.gaps import Gaps
from airflow_provider_deltaforge.storage.records.snapshots import SnapshotRecord, Snapshots
from tests.engine import exact_memory
from tests.engine.exact_memory import change, exact_pipeline, held
from tests.waiting import PATIENCE_S, wait_until

TRANSACTIONS = 40
REFUSED = (11, 1)


class Running:
    """A lane in a thread."""

    def __init__(self, pipeline):
        self.outcome = None
        self._pipeline = pipeline
        self._lane = Lane(pipeline.context(), 60.0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        self.outcome = self._lane.run()

    def end(self):
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the lane did not end"
        return self.outcome

    def stop(self):
        self._pipeline.want("stopped")
        outcome = self.end()
        self._pipeline.want("running")
        return outcome


def finish(pipeline, *names):
    """Run until every sink has everything; each event once, in order."""
    running = Running(pipeline)
    for sink in names or ("out",):
        wait_until(lambda s=sink: pipeline.checkpoints().load().get(s) == {"tx": TRANSACTIONS})
        # The checkpoint of a sink that has lost what it held stands there before it moves back.
        wait_until(lambda s=sink: len(held(pipeline, s).ids) >= len(expected(pipeline)))
    assert running.stop().why == "stopped"
    for sink in names or ("out",):
        assert held(pipeline, sink).ids == expected(pipeline), sink


def expected(pipeline, without=()):
    source = ScriptedSource(
        id=f"{pipeline.name}-source", transactions=TRANSACTIONS, rows=3, keys=30
    )
    return [
        source.event_id(tx, row)
        for tx, row, _ in source.events(1, TRANSACTIONS)
        if (tx, row) not in without
    ]


def is_refused(text):
    after = orjson.loads(text)["after"]
    return (after["tx"], after["row"]) == REFUSED


@pytest.fixture
def begun(monkeypatch):
    def begin(**settings):
        pipeline = exact_pipeline(monkeypatch, transactions=TRANSACTIONS, **settings)
        pipeline.begin_at(**dict.fromkeys(pipeline.sinks, 0))
        return pipeline

    return begin


def test_each_event_is_delivered_once(begun):
    finish(begun())


@pytest.mark.parametrize("in_headers", [False, True], ids=["atomic", "in headers"])
def test_a_sink_that_holds_more_than_another_is_given_nothing_twice(begun, in_headers):
    pipeline = begun(sinks=("fast", "slow"))
    held(pipeline, "fast").in_headers = held(pipeline, "slow").in_headers = in_headers
    held(pipeline, "slow").fail_after = [5] * 1000
    running = Running(pipeline)
    wait_until(lambda: held(pipeline, "fast").ids)
    running.stop()
    held(pipeline, "slow").fail_after = []
    assert pipeline.checkpoints().load() == {"fast": {"tx": 0}, "slow": {"tx": 0}}

    change(pipeline, "max_events: 30", "max_events: 21")  # Cut otherwise.
    finish(pipeline, "fast", "slow")


def test_what_came_through_before_the_sink_was_away_is_not_sent_again(begun):
    pipeline = begun()
    held(pipeline).in_headers = True
    held(pipeline).fail_after = [7] + [0] * 1000
    running = Running(pipeline)
    wait_until(lambda: held(pipeline).ids)
    running.stop()
    assert len(held(pipeline).ids) == 7
    held(pipeline).fail_after = []

    change(pipeline, "max_events: 30", "max_events: 3")
    finish(pipeline)


@pytest.mark.parametrize("in_headers", [False, True], ids=["atomic", "in headers"])
def test_a_transaction_that_is_delivered_in_parts_is_gone_on_with(begun, in_headers):
    settings = {"batch": "respect_source_tx: false, ", "source": "chunk_transactions: 7, "}
    pipeline = begun(**settings)
    held(pipeline).in_headers = in_headers
    held(pipeline).fail_after = [None] * 4 + [0] * 1000
    change(pipeline, "max_events: 30", "max_events: 4")
    running = Running(pipeline)
    wait_until(lambda: len(held(pipeline).ids) == 16)
    running.stop()
    held(pipeline).fail_after = []
    assert held(pipeline).cursor.event_id is not None

    change(pipeline, "max_events: 4", "max_events: 5")
    finish(pipeline)


def test_a_state_store_that_was_lost_begins_where_the_sink_stands(begun):
    pipeline = begun(source="rate: 200, started_ms: 1, ")
    finish(pipeline)
    key = pipeline.checkpoints().key("out")
    pipeline.store.transact([Delete(names.CHECKPOINTS, key)])

    finish(pipeline)


def test_what_the_sink_has_lost_is_delivered_again(begun):
    pipeline = begun()
    finish(pipeline)
    held(pipeline).lose(60)  # Two batches.

    finish(pipeline)


def test_a_sink_that_was_emptied_is_given_the_log_from_its_beginning(begun):
    pipeline = begun()
    held(pipeline).loses_both = True
    finish(pipeline)
    held(pipeline).lose(len(held(pipeline).ids))

    finish(pipeline)


def test_a_sink_that_lost_its_position_alone_stops_the_pipeline_until_somebody_says_it_is_meant(
    begun,
):
    pipeline = begun()
    finish(pipeline)
    former = list(held(pipeline).ids)
    held(pipeline).cursors.clear()
    command = f"`deltaforge sinks resume {pipeline.name} out`"

    for _ in range(2):
        outcome = Running(pipeline).end()
        assert (outcome.why, outcome.error_class) == ("failed", "position_lost")
        assert command in outcome.reason
        assert f"deltaforge reset {pipeline.name} --confirm {pipeline.name}" in outcome.reason
    [gap] = Gaps(pipeline.store, pipeline.name).all()
    assert (gap.end, gap.goes_on) == (None, {"tx": TRANSACTIONS})

    sinks.want(pipeline.store, pipeline.name, "out", "resume", "me")
    for _ in range(2):
        running = Running(pipeline)
        wait_until(lambda: Gaps(pipeline.store, pipeline.name).open() == {})
        assert running.stop().why == "stopped"
    assert held(pipeline).ids == former
    assert pipeline.checkpoints().load() == {"out": {"tx": TRANSACTIONS}}


def test_a_quorum_without_two_sinks_that_lost_their_positions_stops_until_one_is_resumed(begun):
    names = ("one", "two", "three")
    pipeline = begun(sinks=names, policy="commit_policy: {mode: quorum, quorum: 2}")
    finish(pipeline, *names)
    held(pipeline, "two").cursors.clear()
    held(pipeline, "three").cursors.clear()

    outcome = Running(pipeline).end()
    assert (outcome.why, outcome.error_class) == ("failed", "position_lost")
    gaps = Gaps(pipeline.store, pipeline.name)
    [needed] = [gap.sink for gap in gaps.open().values() if gap.goes_on is not None]
    assert len(gaps.open()) == 2
    assert f"`deltaforge sinks resume {pipeline.name} {needed}`" in outcome.reason

    sinks.want(pipeline.store, pipeline.name, needed, "resume", "me")
    running = Running(pipeline)
    wait_until(lambda: needed not in gaps.open())
    assert running.stop().why == "stopped"


def test_a_sink_that_has_its_data_again_goes_on(begun):
    pipeline = begun()
    finish(pipeline)
    sink_positions = list(held(pipeline).cursors)
    held(pipeline).cursors.clear()
    assert Running(pipeline).end().error_class == "position_lost"

    held(pipeline).cursors.extend(sink_positions)
    finish(pipeline)
    assert Gaps(pipeline.store, pipeline.name).open() == {}


def test_a_sink_that_lost_rows_of_a_snapshot_stops_the_pipeline(begun):
    pipeline = begun()
    held(pipeline).loses_both = True
    finish(pipeline)
    records = Snapshots(pipeline.store, pipeline.name)
    run = SnapshotRecord(
        id="r", generation=1, started_at_ms=1, start_position={"tx": 0}, chunk_count=0, tables={}
    )
    pipeline.store.transact(list(records.finish(run)))
    held(pipeline).lose(len(held(pipeline).ids))

    outcome = Running(pipeline).end()
    assert (outcome.why, outcome.error_class) == ("failed", "position_lost")
    assert "rows of snapshots are gone" in outcome.reason

    pipeline.want("stopped")
    pipelines.reset_checkpoint(pipeline.store, pipeline.name, confirm=pipeline.name)
    pipeline.want("running")
    for _ in range(2):
        running = Running(pipeline)
        wait_until(lambda: pipeline.checkpoints().load().get("out") == {"tx": TRANSACTIONS})
        assert running.stop().why == "stopped"


def test_one_that_the_log_does_not_reach_back_for_stops_the_pipeline(begun, monkeypatch):
    pipeline = begun()
    finish(pipeline)
    held(pipeline).lose(60)
    _is_lost_before(monkeypatch, TRANSACTIONS)

    outcome = Running(pipeline).end()
    assert (outcome.why, outcome.error_class) == ("failed", "position_lost")
    assert "the log begins later" in outcome.reason
    assert f"`deltaforge sinks resume {pipeline.name} out`" in outcome.reason
    assert pipeline.checkpoints().load() == {"out": {"tx": TRANSACTIONS}}


def test_one_that_is_not_needed_is_given_up_with_its_gap(begun, monkeypatch):
    pipeline = begun(sinks=("fast", "slow"), optional=("slow",))
    finish(pipeline, "fast", "slow")
    held(pipeline, "slow").lose(60)
    _is_lost_before(monkeypatch, TRANSACTIONS)

    running = Running(pipeline)
    wait_until(lambda: "slow" in Gaps(pipeline.store, pipeline.name).open())
    wait_until(lambda: pipeline.control.progress().sinks["slow"].status == "given_up")
    assert running.stop().why == "stopped"
    gap = Gaps(pipeline.store, pipeline.name).open()["slow"]
    assert gap.start == held(pipeline, "slow").cursor.position
    assert held(pipeline, "fast").ids == expected(pipeline)


def _is_lost_before(monkeypatch, tx):
    def reach(_, position):
        if position["tx"] < tx:
            raise PositionLostError("the log begins later")

    monkeypatch.setattr(ScriptedSource, "reach", reach)


def test_a_position_of_an_earlier_time_does_not_count(begun):
    """Between, the sink was delivered to at least once, so that its own position stood still."""
    pipeline = begun()
    finish(pipeline)
    held(pipeline).lose(60)
    former = list(held(pipeline).ids)
    pipeline.store.transact([pipeline.checkpoints().put("out", {"tx": TRANSACTIONS})])

    running = Running(pipeline)
    wait_until(lambda: pipeline.checkpoints().stand("out").held is not None)
    running.stop()
    assert held(pipeline).ids == former


@pytest.mark.parametrize("how", ["reset", "deleted"])
def test_a_pipeline_that_begins_anew_does_so_whatever_its_sink_holds(begun, how):
    pipeline = begun()
    finish(pipeline)
    held(pipeline).lose(60)
    former = list(held(pipeline).ids)
    pipeline.want("stopped")
    if how == "reset":
        pipelines.reset_checkpoint(pipeline.store, pipeline.name, confirm=pipeline.name)
    else:
        pipeline.control.delete()
        pipelines.apply(pipeline.store, pipeline.document)
    pipeline.want("running")

    for _ in range(2):
        running = Running(pipeline)
        wait_until(lambda: pipeline.checkpoints().load().get("out") == {"tx": TRANSACTIONS})
        running.stop()
        assert held(pipeline).ids == former  # The stream begins at the log's end.


def test_a_lane_takes_its_sink_over_again_from_a_stranger(begun):
    pipeline = begun(source="rate: 100, started_ms: 1, ")
    running = Running(pipeline)
    wait_until(lambda: held(pipeline).ids)
    held(pipeline).owner = "a stranger"
    wait_until(lambda: pipeline.checkpoints().load().get("out") == {"tx": TRANSACTIONS})
    assert running.stop().why == "stopped"
    assert held(pipeline).ids == expected(pipeline)


def test_two_pipelines_of_one_name_end_instead_of_fighting(begun):
    pipeline = begun()
    place = held(pipeline)

    class Contested:
        def __set__(self, *_):
            pass

        def __get__(self, *_):
            return "a stranger"

    place.__class__ = type("Contested", (type(place),), {"owner": Contested()})
    outcome = Running(pipeline).end()

    assert (outcome.why, outcome.error_class) == ("failed", "fatal")
    assert "another pipeline of this name" in outcome.reason


def test_without_a_queue_nothing_passes_what_a_sink_refuses(begun):
    pipeline = begun()
    held(pipeline).refuses = is_refused
    outcome = Running(pipeline).end()
    assert (outcome.why, outcome.error_class) == ("failed", "event")
    assert held(pipeline).ids == expected(pipeline)[:30]

    held(pipeline).refuses = lambda _: False
    finish(pipeline)


def test_what_a_sink_refuses_is_set_aside_before_it_holds_the_rest(begun):
    pipeline = begun(journal="enabled: true")
    held(pipeline).refuses = is_refused
    running = Running(pipeline)
    wait_until(lambda: pipeline.checkpoints().load().get("out") == {"tx": TRANSACTIONS})
    running.stop()

    assert held(pipeline).ids == expected(pipeline, without={REFUSED})
    assert pipeline.control.progress().sinks["out"].events == len(held(pipeline).ids)
    letters = DeadLetterRecords(pipeline.store, pipeline.name).read()
    assert [is_refused(orjson.dumps(letter.event)) for letter in letters] == [True]


@pytest.mark.parametrize("in_headers", [False, True], ids=["atomic", "in headers"])
def test_a_sink_that_is_caught_up_is_given_nothing_twice(begun, in_headers):
    pipeline = begun(sinks=("fast", "slow"), optional=("slow",))
    held(pipeline, "slow").in_headers = in_headers
    held(pipeline, "slow").fail_after = [None, 7] + [0] * 10_000
    running = Running(pipeline)
    wait_until(lambda: pipeline.checkpoints().load().get("fast") == {"tx": TRANSACTIONS})
    held(pipeline, "slow").fail_after.clear()
    wait_until(lambda: pipeline.checkpoints().load().get("slow") == {"tx": TRANSACTIONS})
    assert running.stop().why == "stopped"

    for sink in pipeline.sinks:
        assert held(pipeline, sink).ids == expected(pipeline), sink
    finish(pipeline, *pipeline.sinks)


def test_a_sink_that_answers_too_late_does_not_shut_out_the_writer_of_the_lane(begun, monkeypatch):
    told = exact_memory._Writer.recover

    def slow_is_away(writer):
        if writer._held is held(pipeline, "slow"):
            raise RetryableError("away")
        return told(writer)

    tuning = Tuning(optional_sink_s=0.1)
    pipeline = begun(sinks=("fast", "slow"), optional=("slow",), tuning=tuning)
    monkeypatch.setattr(exact_memory._Writer, "recover", slow_is_away)
    running = Running(pipeline)
    wait_until(lambda: pipeline.checkpoints().load().get("fast") == {"tx": TRANSACTIONS})
    wait_until(lambda: not any(one.name.startswith("cursor") for one in threading.enumerate()))
    running.stop()
