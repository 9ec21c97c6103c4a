"""What a pipeline did over the last day: recorded with heartbeats, bounded, read as a curve."""

import pytest

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.control.history import HistoryRange, history
from airflow_provider_deltaforge.control.metrics import observe
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.engine.base.heartbeat import ProgressReport
from airflow_provider_deltaforge.engine.base.lane_stats import LaneStats
from airflow_provider_deltaforge.errors import FencedError, SpecError
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.memory import MemoryStore
from airflow_provider_deltaforge.storage.records import history as records
from airflow_provider_deltaforge.storage.records.control import Control
from airflow_provider_deltaforge.storage.records.history import (
    HOURS_KEPT,
    History,
    HistoryRecorder,
    MinuteSample,
)
from airflow_provider_deltaforge.storage.records.stats import Latency, SinkProgress, Stats
from tests.engine.driving import Driving
from tests.engine.in_process import InProcess
from tests.waiting import wait_until

MINUTE_0 = 29_000_000
"""Since the epoch; not the first one of its hour."""
DAY = HistoryRange.of("23h", "1m", MINUTE_0 * 60)


class Clock:
    """Stands in for the module ``time``."""

    now_s = MINUTE_0 * 60.0

    def time(self):
        return self.now_s

    def monotonic(self):
        return self.now_s


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(records, "time", clock)
    return clock


@pytest.fixture
def store():
    store = MemoryStore()
    control = Control(store, "orders")
    control.apply("metadata: {}", "h", "shop", "acme")
    control.take_epoch("driver")
    return store


def latency(**counts):
    """Return a histogram with so many waits in the buckets of these numbers."""
    made = Latency()
    for index, count in counts.items():
        made.counts[int(index.removeprefix("b"))] = count
    return made


def points(store, asked=DAY):
    return {
        point["at"]: point
        for point in history(store, "orders", asked)["points"]
        if point["events"] is not None
    }


def test_what_is_counted_between_heartbeats_is_the_minutes_own(store, clock):
    kept = History(store, "orders")
    recorder = HistoryRecorder(kept)
    recorder.resume(None, Stats(events=1000, bytes=9, latency=latency(b0=7)))
    recorder.observe(Stats(events=1000, bytes=9, latency=latency(b0=7)), "running")
    clock.now_s += 30
    waits, sinks = latency(b0=7, b5=600), {"out": {"retries": 2}}
    stats = Stats(events=1600, bytes=69, lag_ms=500, latency=waits, sinks=sinks)
    recorder.observe(stats, "blocked")
    assert recorder.writes() == []
    clock.now_s += 30
    recorder.observe(stats.model_copy(update={"events": 1700, "lag_ms": 20}), "running")
    store.transact(recorder.writes())

    (sample,) = kept.samples()
    assert (sample.minute, sample.seconds, sample.events, sample.bytes) == (MINUTE_0, 30, 600, 60)
    assert (sample.errors, sample.lag_ms, sample.lag_max_ms) == (2, 500, 500)
    assert (sample.latency, sample.status) == (latency(b5=600), "blocked")
    recorder.stored()
    assert recorder.writes() == []
    assert recorder.observe(stats, "running").events == 0


def test_minutes_that_could_not_be_stored_are_stored_later_and_once(store, clock):
    kept = History(store, "orders")
    recorder = HistoryRecorder(kept)
    for minute in range(90):
        recorder.observe(Stats(events=minute), "running")
        if minute == 40:
            store.transact(recorder.writes())  # Nobody knows that it worked.
        clock.now_s += 60
    recorder.observe(Stats(events=90), "running")
    store.transact(recorder.writes())

    assert [sample.events for sample in kept.samples()] == [0, *[1] * 89]
    assert [sample.minute for sample in kept.samples()] == [MINUTE_0 + n for n in range(90)]


def test_a_history_takes_no_more_room_after_its_day(store, clock):
    recorder = HistoryRecorder(History(store, "orders"))
    for _ in range(40):
        for _ in range(2):
            recorder.observe(Stats(), "running")
            clock.now_s += 1800
        store.transact(recorder.writes())
        recorder.stored()

    assert len(store.items(names.HISTORY)) == HOURS_KEPT
    minutes = [sample.minute for sample in History(store, "orders").samples()]
    assert minutes == sorted(minutes)
    assert minutes[0] * 60 <= clock.now_s - 24 * 3600


def test_a_clock_that_is_set_back_a_little_loses_nothing(store, clock):
    kept = History(store, "orders")
    recorder = HistoryRecorder(kept)
    for events, seconds in ((1, 60), (2, -60), (3, 120)):
        recorder.observe(Stats(events=events), "running")
        clock.now_s += seconds
    recorder.observe(Stats(events=4), "running")
    store.transact(recorder.writes())
    assert [sample.events for sample in kept.samples()] == [1, 2]


def test_points_join_minutes_and_say_when_nothing_is_known(store):
    def sample(minute, **values):
        return MinuteSample(minute=MINUTE_0 + minute, **values)

    kept = [
        sample(-9, seconds=60, events=600, lag_ms=5, lag_max_ms=70, latency=latency(b1=1000)),
        sample(-8, seconds=20, events=200, lag_ms=9, lag_max_ms=30, latency=latency(b12=10, b13=1)),
        sample(-3, seconds=60, status="blocked", errors=4, dead_letters=2),
    ]
    store.transact(History(store, "orders").puts(kept))
    asked = HistoryRange.of("10m", "5m", (MINUTE_0 + 0.5) * 60)
    shown = history(store, "orders", asked)

    assert (shown["step_s"], len(shown["points"])) == (300, 3)
    first, second, third = shown["points"]
    assert (first["events"], first["events_per_s"]) == (800, 10.0)
    assert (first["lag_ms"], first["lag_max_ms"]) == (9, 70)
    assert first["latency_p50_ms"] == pytest.approx(1 + 4 * 505.5 / 1000)
    assert first["latency_p99_ms"] == pytest.approx(10_000 + 20_000 * 0.89 / 10)
    assert (second["status"], second["errors"], second["dead_letters"]) == ("blocked", 4, 2)
    assert (second["events"], second["latency_p50_ms"], second["lag_ms"]) == (0, None, None)
    assert {key for key, value in third.items() if value is not None} == {"at"}


def test_a_wait_above_the_last_bound_is_shown_as_that_bound(store):
    sample = MinuteSample(minute=MINUTE_0, seconds=1, latency=latency(b13=5))
    store.transact(History(store, "orders").puts([sample]))
    (point,) = points(store).values()
    assert (point["latency_p50_ms"], point["latency_p99_ms"]) == (30_000, 30_000)


@pytest.mark.parametrize(
    ("since", "step", "named"),
    [
        *(("yesterday", "", "since"), ("", "", "since"), ("9" * 11, "", "since")),
        *(("1h", "90s", "step"), ("1h", "0m", "step"), ("1h", "2d", "step"), ("1h", "x", "step")),
        *(("٣h", "", "since"), ("1h", "\0", "step")),
    ],
)
def test_a_range_that_is_none_is_refused_by_its_name(since, step, named):
    with pytest.raises(SpecError, match=f"^{named}: "):
        HistoryRange.of(since, step)


@pytest.mark.parametrize(
    ("since", "step_s", "range_s"),
    [("1h", 60, 3600), ("12h", 300, 43200), ("999999999d", 300, 86400), ("0", 300, 86400)],
)
def test_a_range_has_a_step_that_fits_and_no_more_than_is_kept(since, step_s, range_s):
    found = HistoryRange.of(since, "", MINUTE_0 * 60)
    assert (found.step_s, found.until_s - found.since_s) == (step_s, range_s + step_s)
    assert HistoryRange.of("2026-05-01T12:00:00Z", "1h", 1777640400).since_s == 1777636800


def test_the_next_driver_goes_on_with_the_minute_of_the_one_before():
    pipeline = InProcess()
    pipeline.begin_at(out=0)
    for generation, transactions in ((1, 20), (2, 40)):
        pipeline.want("running", generation)
        document = pipeline.document.replace("transactions: 20", f"transactions: {transactions}")
        pipelines.apply(pipeline.store, document)
        driving = Driving(pipeline, generation=generation)
        end = {"tx": transactions}
        wait_until(lambda end=end: pipeline.checkpoints().load()["out"] == end)
        pipeline.want("stopped", generation)
        assert driving.end().why == "stopped"

    assert pipeline.control.progress().events == 60  # The counters are the second driver's own.
    shown = history(pipeline.store, pipeline.name, HistoryRange.of("10m", ""))
    assert sum(point["events"] or 0 for point in shown["points"]) == 120
    assert shown["points"][-1]["latency_p50_ms"] is not None


@pytest.mark.parametrize("damaged", [b"no record", b'{"v": 7, "hour": 1}'])
def test_no_pipeline_stops_for_a_record_that_cannot_be_read(clock, damaged):
    pipeline = InProcess()
    for hour in range(HOURS_KEPT):
        pipeline.store.put(names.HISTORY, f"{pipeline.name}/{hour:02}", damaged)
    pipeline.store.put(names.MEASUREMENTS, pipeline.name, damaged)
    context = pipeline.context()
    report = ProgressReport(context, LaneStats(), "running")
    report.resume(begins=False)
    for _ in range(2):
        report.next(None)
        clock.now_s += 60
    report.next(None)
    pipeline.store.transact([*report.history.writes(), *report.measurements(is_last=True)])
    assert len(History(pipeline.store, pipeline.name).samples()) == 2
    (observed,) = observe(pipeline.store, [status(pipeline.store, pipeline.name)])
    assert observed.measured is not None


def test_a_driver_that_is_fenced_adds_nothing_to_the_history(clock):
    pipeline = InProcess()
    context = pipeline.context()
    recorder = HistoryRecorder(History(pipeline.store, pipeline.name))
    recorder.observe(Stats(sinks={"out": SinkProgress(retries=1)}), "running")
    clock.now_s += 60
    recorder.observe(Stats(), "running")
    pipeline.control.take_epoch("another")
    with pytest.raises(FencedError):
        pipeline.store.transact(recorder.writes(), context.fence)
    assert History(pipeline.store, pipeline.name).samples() == []
