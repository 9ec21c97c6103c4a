"""A sink holds a part of a batch, and the document changes before the log is read again."""

import functools
from dataclasses import replace

import orjson
import pytest
import redis

from airflow_provider_deltaforge.plugins import SINKS, SOURCES
from airflow_provider_deltaforge.sources.scripted import ScriptedReader, ScriptedSource
from tests.engine.exact_memory import HELD as HELD_BY
from tests.engine.exact_memory import change, exact_pipeline, held
from tests.engine.in_process import QUICK, InProcess
from tests.engine.real_run import RealRun
from tests.engine.running import RunningLane, run_to_the_end
from tests.servers import redis as redis_servers
from tests.waiting import wait_until

TRANSACTIONS, ROWS = 40, 3
ALL = [(tx, row) for tx in range(1, TRANSACTIONS + 1) for row in range(ROWS)]
HELD = 5
"""So many events came through: the last one is the second of transaction 2."""
LEFT_OUT = "{{type: filter, fields: [{{path: {}, op: {}, value: {}}}]}}".format


class WatchedSource(ScriptedSource):
    """May be told to capture nothing, and notes what is acknowledged."""

    captured: bool = True

    def open(self, position, stopping=lambda: False, history=None):
        del stopping, history
        return WatchedReader(self, int(position["tx"]))


class WatchedReader(ScriptedReader):
    def __init__(self, source, start):
        super().__init__(source, start)
        self._captured = source.captured
        self._seen = acknowledged(source.id)

    def decode(self, segment):
        batch = super().decode(segment)
        return batch if self._captured else replace(batch, rows=batch.rows.slice(0, 0))

    def acknowledge(self, position):
        self._seen.append(position["tx"])


@functools.cache
def acknowledged(source_id):
    """Return what was acknowledged to a source so far."""
    del source_id
    return []


def names(values):
    events = [orjson.loads(value)["after"] for value in values]
    return [(after["tx"], after["row"]) for after in events]


def names_in(pipeline, sink="out"):
    return names(value for _, value in held(pipeline, sink).values)


@pytest.fixture
def cut_off(monkeypatch):
    """Make a pipeline whose sink holds a part of its first batch."""
    monkeypatch.setitem(SOURCES.shipped, "scripted", f"{__name__}:WatchedSource")

    def begin(sink="out", **settings):
        pipeline = exact_pipeline(monkeypatch, transactions=TRANSACTIONS, rows=ROWS, **settings)
        pipeline.begin_at(**dict.fromkeys(pipeline.sinks, 0))
        held(pipeline, sink).in_headers = True
        held(pipeline, sink).fail_after = [HELD] + [0] * 1000
        lane = RunningLane(pipeline)
        wait_until(lambda: len(held(pipeline, sink).values) == HELD)
        pipeline.want("stopped")
        lane.end()
        held(pipeline, sink).fail_after = []
        assert names_in(pipeline, sink) == ALL[:HELD]
        return pipeline

    return begin


def finished(pipeline):
    """Run to the end; return what the sink holds."""
    run_to_the_end(pipeline, TRANSACTIONS)
    return names_in(pipeline)


def refused(pipeline):
    """Run a lane that is to end by itself; return why it did."""
    pipeline.want("running")
    outcome = RunningLane(pipeline).end()
    assert outcome.why == "failed"
    return outcome.reason


@pytest.mark.parametrize(
    ("path", "op", "value"),
    [
        ("row", "ne", 1),  # The last event that the sink holds, and others like it.
        ("tx", "gt", 2),  # All events of the part that it holds.
        ("tx", "gt", 15),  # The whole batch, and a part of the next.
    ],
)
@pytest.mark.parametrize("most", [30, 3], ids=["cut alike", "cut otherwise"])
def test_a_filter_that_leaves_out_the_last_event_held_leaves_out_nothing_else(
    cut_off, path, op, value, most
):
    pipeline = cut_off()
    change(pipeline, "max_events: 30", f"max_events: {most}")
    change(pipeline, "processors: []", f"processors: [{LEFT_OUT(path, op, value)}]")
    is_wanted = {
        "row": lambda tx, row: row != value,
        "tx": lambda tx, row: tx > value,
    }[path]
    assert finished(pipeline) == ALL[:HELD] + [name for name in ALL[HELD:] if is_wanted(*name)]


# One row less in each transaction, or none at all: as if its table were not captured any more.
GONE = [(f"rows: {ROWS}, keys", "rows: 1, keys"), ("keys: 30, ", "keys: 30, captured: false, ")]


@pytest.mark.parametrize(("former", "later"), GONE, ids=["some rows", "no rows"])
@pytest.mark.parametrize("most", [30, 3], ids=["cut alike", "cut otherwise"])
def test_an_event_that_left_the_log_stops_the_pipeline_and_nothing_moves(
    cut_off, former, later, most
):
    pipeline = cut_off()
    change(pipeline, "max_events: 30", f"max_events: {most}")
    before = pipeline.checkpoints().records()["out"]
    change(pipeline, former, later)
    for _ in range(2):
        reason = refused(pipeline)
        assert "does not show any more" in reason
        assert f"read up to {{'tx': {TRANSACTIONS}}}" in reason
        assert names_in(pipeline) == ALL[:HELD]
        after = pipeline.checkpoints().records()["out"]
        assert (after.position, before.position) == ({"tx": 0}, {"tx": 0})
    assert {*acknowledged(f"{pipeline.name}-source")} <= {0}

    change(pipeline, later, former)
    assert finished(pipeline) == ALL


def test_without_exactly_once_what_is_held_behind_the_checkpoint_comes_once_more(cut_off):
    pipeline = cut_off()
    change(pipeline, *GONE[0])
    assert "or remove exactly_once" in refused(pipeline)

    change(pipeline, *reversed(GONE[0]))
    change(pipeline, "id: out", "id: out, exactly_once: false")
    assert finished(pipeline) == ALL[:HELD] + ALL


def test_beside_a_lane_that_goes_on_the_checkpoint_of_such_a_sink_stands(cut_off):
    tuning = replace(QUICK, refused_sink_s=0.05)
    pipeline = cut_off("slow", sinks=("fast", "slow"), optional=("slow",), tuning=tuning)
    before = len(acknowledged(f"{pipeline.name}-source"))
    change(pipeline, *GONE[0])
    lane = RunningLane(pipeline)
    wait_until(lambda: pipeline.checkpoints().load()["fast"] == {"tx": TRANSACTIONS})
    wait_until(lambda: "does not show" in shown_reason(pipeline, "slow"))
    pipeline.want("stopped")
    assert lane.end().why == "stopped"
    assert pipeline.checkpoints().load()["slow"] == {"tx": 0}
    assert names_in(pipeline, "slow") == ALL[:HELD]
    assert {*acknowledged(f"{pipeline.name}-source")[before:]} <= {0}

    change(pipeline, *reversed(GONE[0]))
    run_to_the_end(pipeline, TRANSACTIONS)
    assert names_in(pipeline, "slow") == ALL


def shown_reason(pipeline, sink):
    return pipeline.control.progress().sinks[sink].reason or ""


SPREAD = [("t", 1), ("t", 2), ("u", 3), ("u", 4), ("u", 5)]


@pytest.mark.parametrize("kind", ["mysql", "postgres"])
def test_a_table_that_is_not_captured_any_more_stops_a_log_in_which_nothing_happens(
    kind, request, tmp_path, monkeypatch
):
    """The sink holds one row of that table last; only the log's end says that it will not come."""
    monkeypatch.setitem(SINKS.shipped, "exact", "tests.engine.exact_memory:ExactSink")
    config = {"id": "out", "log": f"{kind}-{tmp_path.name}-out"}
    more = {"sinks": [{"type": "exact", "config": config}]}
    server = request.getfixturevalue(f"{kind}_server")
    run = RealRun(server, tmp_path, settings={"snapshot": {"mode": "never"}}, more=more)
    run.execute("CREATE TABLE u (id int PRIMARY KEY, v varchar(20))")
    if run.is_postgres:
        run.execute("ALTER TABLE u OWNER TO df")
    where = "public" if run.is_postgres else run.name
    fewer, both = [f"{where}.t"], [f"{where}.t", f"{where}.u"]
    run.change_source(tables=both)
    sink = HELD_BY[config["log"]]
    run.start()
    wait_until(lambda: run.status().status == "running")
    sink.in_headers, sink.fail_after = True, [3] + [0] * 10_000
    rows = [f"INSERT INTO {table} VALUES ({row}, 'x')" for table, row in SPREAD]
    run.execute("BEGIN", *rows, "COMMIT")
    wait_until(lambda: len(sink.values) == 3)
    run.stop()
    sink.fail_after = []

    run.change_source(tables=fewer)
    run.start()
    wait_until(lambda: run.status().status == "failed")
    assert "does not show any more" in run.status().reason
    run.stop()

    run.change_source(tables=both)
    run.start()
    wait_until(lambda: len(sink.values) >= len(SPREAD))
    assert run.stop().why == "stopped"
    events = [orjson.loads(value) for _, value in sink.values]
    assert [(event["source"]["table"], event["after"]["id"]) for event in events] == SPREAD


LONG = {"transactions": 30, "rows": 500}
LARGE = [(tx, row) for tx in range(1, LONG["transactions"] + 1) for row in range(LONG["rows"])]


@pytest.fixture
def full_redis(tmp_path):
    """Return a pipeline whose Redis ran out of memory within a batch, and how to read there."""
    settings = {"maxmemory": "3mb", "maxmemory-policy": "noeviction"}
    server = redis_servers.start(tmp_path / "redis", settings=settings)
    client = redis.Redis.from_url(server.url.format(database=0))
    pipeline = InProcess(**LONG)
    memory = next(line for line in pipeline.document.splitlines() if "type: memory" in line)
    settings = f"id: out, uri: '{server.url.format(database=0)}', stream: s, exactly_once: true"
    sink = f"    - {{type: redis, config: {{{settings}}}}}"
    pipeline.document = pipeline.document.replace(memory, sink).replace(
        "max_events: 30", "max_events: 5000"
    )
    pipeline.apply()
    pipeline.begin_at(out=0)

    def read():
        return names(fields[b"event"] for _, fields in client.xrange("s"))

    lane = RunningLane(pipeline)
    wait_until(lambda: pipeline.status()[0] == "blocked")
    pipeline.want("stopped")
    lane.end()
    client.config_set("maxmemory", "256mb")
    yield pipeline, read
    client.close()
    server.discard()


def test_redis_that_was_full_goes_on_behind_an_entry_that_a_filter_leaves_out_now(full_redis):
    pipeline, read = full_redis
    part = read()
    assert part == LARGE[: len(part)] != LARGE
    row = part[-1][1]
    change(pipeline, "processors: []", f"processors: [{LEFT_OUT('row', 'ne', row)}]")
    run_to_the_end(pipeline, LONG["transactions"])
    assert read() == part + [name for name in LARGE[len(part) :] if name[1] != row]


def test_redis_that_was_full_lacks_nothing_when_the_document_is_changed_back(full_redis):
    pipeline, read = full_redis
    part, checkpoint = read(), pipeline.checkpoints().load()
    fewer = (f"rows: {LONG['rows']}, keys", f"rows: {part[-1][1]}, keys")
    change(pipeline, *fewer)
    assert "does not show any more" in refused(pipeline)
    assert (read(), pipeline.checkpoints().load()) == (part, checkpoint)

    change(pipeline, *reversed(fewer))
    run_to_the_end(pipeline, LONG["transactions"])
    assert read() == LARGE
