"""``delivery.parallelism``: parts of a batch at the same time, and every key in its order."""

import random
import threading
import time
from collections import defaultdict

import numpy as np
import orjson
import pyarrow as pa
import pytest

from airflow_provider_deltaforge.engine.base.parallel_calls import call_in_parallel
from airflow_provider_deltaforge.engine.base.processor_stats import ProcessorStats
from airflow_provider_deltaforge.engine.render.processor_chain import ProcessorChain
from airflow_provider_deltaforge.errors import EventError, FatalError, RetryableError
from airflow_provider_deltaforge.plugins import SINKS
from airflow_provider_deltaforge.processors.contract import Processed
from airflow_provider_deltaforge.sinks.memory import MemorySink
from airflow_provider_deltaforge.storage.records.dead_letters import DeadLetterRecords
from tests.engine import appending
from tests.engine.planted import CLOSED, Planted, doubling, keeping, plant, refusing
from tests.engine.real_run import RealRun
from tests.engine.running import RunningLane, begun, events, places, run_to_the_end
from tests.engine.test_processor_chain import Watcher, batch, change
from tests.waiting import wait_until

FOUR = "delivery: {parallelism: 4}"


def rows_of(count):
    return batch(*(change(number, tx_end=number % 7 == 6) for number in range(count)))


def number_of(text):
    return int(text[6:-1])


class TestProcessors:
    @pytest.fixture
    def chains(self, monkeypatch):
        """Return a chain of one worker each, and one of four, with the same works."""
        opened = []

        def of(**works):
            plant(monkeypatch, **works)
            for parallelism in (1, 4):
                made = ProcessorChain(
                    [Planted(id=name) for name in works], ProcessorStats(), Watcher(), lambda: False
                )
                made.open(parallelism)
                opened.append(made)
            return opened[-2:]

        yield of
        for made in opened:
            made.close()

    @pytest.mark.parametrize(
        "works",
        [
            {"most": keeping(lambda text: number_of(text) % 3 > 0)},
            {"twice": doubling, "again": doubling},
            {"picky": refusing(lambda text: number_of(text) % 5 == 0), "twice": doubling},
            {
                "twice": doubling,
                "picky": refusing(lambda text: number_of(text) % 5 == 0),
                "pickier": refusing(lambda text: number_of(text) % 7 == 0),
            },
            {"none": keeping(lambda _: False)},
        ],
        ids="-".join,
    )
    def test_what_comes_out_does_not_depend_on_the_parts(self, chains, works):
        alone, divided = (chain.process(rows_of(100)) for chain in chains(**works))

        assert divided.rows.equals(alone.rows)
        assert np.array_equal(divided.origins, alone.origins)
        for one, other in zip(alone.refused, divided.refused, strict=True):
            assert one.processor_id == other.processor_id
            assert one.rows.equals(other.rows)
            assert np.array_equal(one.origins, other.origins)
            assert list(one.rejections) == list(other.rejections)

    def test_parts_are_processed_at_the_same_time_each_by_a_worker_that_keeps_its_keys(
        self, chains
    ):
        both, seen = threading.Barrier(4, timeout=20), defaultdict(set)

        def work(rows):
            both.wait()
            seen[threading.get_ident()].update(rows["key"].to_pylist())
            return Processed(rows)

        _, divided = chains(slow=work)
        divided.process(rows_of(100))

        assert len(seen) == 4
        assert sum(map(len, seen.values())) == len(set.union(*seen.values())) == 100

    def test_the_order_is_that_of_the_log_whatever_a_processor_returns(self, chains):
        def backwards(rows):
            """Return the last events first, and behind each a copy of it."""
            at = np.repeat(np.arange(rows.num_rows, dtype=np.int32)[::-1], 2)
            made = pa.array(np.tile([False, True], rows.num_rows))
            return Processed(rows.take(pa.array(at)), origins=pa.array(at), made=made)

        for chain in chains(last=backwards):
            done = chain.process(rows_of(60))
            assert done.origins.tolist() == np.repeat(np.arange(60), 2).tolist()
            assert done.rows["row"].to_pylist() == done.origins.tolist()
            assert done.rows["synthetic"].to_pylist() == [None, "last"] * 60
            ends = np.flatnonzero(done.rows["tx_end"].to_numpy(zero_copy_only=False))
            assert ends.tolist() == list(range(13, 120, 14))

    @pytest.mark.parametrize("error", [EventError, FatalError])
    def test_an_error_in_one_part_ends_the_batch_once_all_have_ended(self, chains, error):
        ended = []

        def work(rows):
            if b'{"id":3}' in rows["key"].to_pylist():
                raise error("no such field")
            time.sleep(0.05)
            ended.append(rows.num_rows)
            return Processed(rows)

        _, divided = chains(picky=work)
        with pytest.raises(error, match="processor picky: no such field"):
            divided.process(rows_of(100))
        assert len(ended) == 3

    def test_a_processor_that_fails_in_one_part_is_shown_until_it_works_there(self, chains):
        away = {b'{"id":3}': 1, b'{"id":1}': 2, b'{"id":2}': 3}

        def work(rows):
            for key in away.keys() & set(rows["key"].to_pylist()):
                if away[key]:
                    away[key] -= 1
                    raise RetryableError("the key server is away")
            return Processed(rows)

        _, divided = chains(slow=work)
        done = divided.process(rows_of(100))
        assert done.rows.equals(rows_of(100))
        told = [error for _, error in divided._watcher.told]
        assert told[-1] is None
        assert told.count(None) == 1

    def test_every_worker_is_closed(self, chains):
        _, divided = chains(first=Processed, second=Processed)
        divided.close()
        assert sorted(CLOSED) == ["first"] * 4 + ["second"] * 4


class TestCalls:
    def test_one_that_needs_a_person_is_raised_before_one_that_may_pass(self):
        def fail(error):
            raise error

        calls = [
            lambda: fail(RetryableError("away")),
            lambda: 1,
            lambda: fail(FatalError("never")),
        ]
        with pytest.raises(FatalError, match="never"):
            call_in_parallel(calls, "test")
        assert call_in_parallel([lambda: 1, lambda: 2], "test") == [1, 2]


@pytest.fixture
def late(monkeypatch):
    """Let each writer take another time for each write, as connections do."""
    chosen, first = random.Random(7), MemorySink.open

    def opened(sink, pipeline):
        writer = first(sink, pipeline)

        class Late:
            def write(self, messages):
                time.sleep(chosen.random() / 100)
                return writer.write(messages)

            def close(self):
                writer.close()

        return Late()

    monkeypatch.setattr(MemorySink, "open", opened)


def in_order(pipeline):
    """Return whether the events of each row came in the order of the log."""
    rows = defaultdict(list)
    for event in events(pipeline):
        rows[event["after"]["id"]].append((event["after"]["tx"], event["after"]["row"]))
    return all(list(dict.fromkeys(found)) == sorted(set(found)) for found in rows.values())


class TestDelivery:
    def test_writers_overtake_each_other_and_no_row_overtakes_itself(self, late):
        pipeline = begun(transactions=60, policy=FOUR)
        progress = run_to_the_end(pipeline, 60)

        alone = begun(transactions=60, name=pipeline.name, sinks=("alone",))
        run_to_the_end(alone, 60)
        expected = [(tx, row) for tx in range(1, 61) for row in range(3)]
        assert sorted(places(pipeline)) == expected != places(pipeline)
        assert in_order(pipeline)
        assert progress.sinks["out"].events == 180
        ids = {event["event_id"] for event in events(pipeline)}
        assert ids == {event["event_id"] for event in events(alone, "alone")}

    def test_a_part_that_fails_is_sent_again_and_the_others_are_not(self, late):
        pipeline = begun(policy=FOUR)
        pipeline.log().fail_next(5, RetryableError("away"), after_messages=2)
        run_to_the_end(pipeline)

        found = places(pipeline)
        assert set(found) == {(tx, row) for tx in range(1, 21) for row in range(3)}
        assert 60 < len(found) <= 60 + 5 * 2
        assert in_order(pipeline)

    def test_what_writers_refuse_is_set_aside_row_by_row(self):
        pipeline = begun(policy=FOUR, journal="enabled: true")
        pipeline.log().refuses = lambda value: b'"row":2,' in value or b'"row":2}' in value
        run_to_the_end(pipeline)

        assert sorted(places(pipeline)) == [(tx, row) for tx in range(1, 21) for row in range(2)]
        assert DeadLetterRecords(pipeline.store, pipeline.name).count() == 20

    def test_a_sink_that_falls_behind_is_caught_up_in_parts(self, late):
        pipeline = begun(
            transactions=200, sinks=("out", "late"), optional=("late",), policy=FOUR,
            source="rate: 400, ", batch="max_bytes: 2000, ",
        )  # fmt: skip
        pipeline.log("late").fail_next(3, RetryableError("away"))
        run_to_the_end(pipeline, 200)

        for sink in ("out", "late"):
            seen = places_of(pipeline, sink)
            assert set(seen) == {(tx, row) for tx in range(1, 201) for row in range(3)}

    def test_another_number_of_parts_goes_on_where_the_former_ended(self, late):
        pipeline = begun(transactions=100, source="rate: 200, ", policy=FOUR)
        lane = RunningLane(pipeline)
        wait_until(lambda: len(places(pipeline)) > 60)
        pipeline.want("stopped")
        lane.end()
        pipeline.document = pipeline.document.replace("parallelism: 4", "parallelism: 3")
        pipeline.apply()
        pipeline.want("running")
        run_to_the_end(pipeline, 100)

        assert sorted(places(pipeline)) == [(tx, row) for tx in range(1, 101) for row in range(3)]
        assert in_order(pipeline)


def places_of(pipeline, sink):
    return [(event["after"]["tx"], event["after"]["row"]) for event in events(pipeline, sink)]


@pytest.mark.parametrize(
    "server", ["postgres_server", pytest.param("mysql_server", marks=pytest.mark.long)]
)
def test_moving_rows_truncates_and_schema_changes_keep_their_order(
    server, request, tmp_path, monkeypatch
):
    for name, place in appending.PLACE.items():
        monkeypatch.setitem(SINKS.shipped, name, place)
    paths = {"file": tmp_path / "alone.jsonl", "appending": tmp_path / "parts.jsonl"}
    run = RealRun(
        request.getfixturevalue(server),
        tmp_path,
        more={
            "delivery": {"parallelism": 4},
            "batch": {"max_events": 40},
            "processors": [{"type": "filter", "id": "all"}],
            "sinks": [
                {"type": kind, "config": {"id": kind, "path": str(path)}}
                for kind, path in paths.items()
            ],
        },
    )
    run.start()
    wait_until(lambda: run.status().status == "running")
    run.execute(*statements(random.Random(11)))
    for path in paths.values():
        wait_until(lambda path=path: path.exists() and b'"the end"' in path.read_bytes())
    run.stop()

    alone, divided = (
        [orjson.loads(line) for line in path.read_bytes().splitlines()] for path in paths.values()
    )
    assert names(alone) != names(divided)
    assert sorted(names(alone)) == sorted(names(divided))
    assert touching(alone) == touching(divided)
    # Nothing passes what concerns the table, in either direction.
    for at, event in enumerate(alone):
        if event["op"] in ("t", "ddl"):
            assert set(names(alone[:at])) == set(names(divided[:at]))
            assert divided[at]["event_id"] == event["event_id"]


def statements(chosen):
    """Return a history of rows that are made, changed, moved to other keys and removed."""
    alive = set()
    yield "BEGIN"
    for number in range(240):
        if number % 20 == 0:
            yield "COMMIT"
            if number == 80:
                yield "TRUNCATE TABLE t"
                alive = set()
            if number == 160:
                yield "ALTER TABLE t ADD COLUMN w int"
            yield "BEGIN"
        key = chosen.randrange(40)
        if key not in alive:
            yield f"INSERT INTO t (id, v) VALUES ({key}, 'x')"
            alive.add(key)
        elif chosen.random() < 0.3 and len(alive) < 40:
            new = chosen.choice([each for each in range(40) if each not in alive])
            yield f"UPDATE t SET id = {new} WHERE id = {key}"
            alive = (alive - {key}) | {new}
        elif chosen.random() < 0.3:
            yield f"DELETE FROM t WHERE id = {key}"
            alive.discard(key)
        else:
            yield f"UPDATE t SET v = '{number}' WHERE id = {key}"
    yield from ("COMMIT", "INSERT INTO t (id, v) VALUES (1000, 'the end')")


def names(events_):
    return [event["event_id"] for event in events_]


def touching(events_):
    """Return by key the events that a row had it in, before or after."""
    found = defaultdict(list)
    for event in events_:
        for key in {(event[image] or {}).get("id") for image in ("before", "after")} - {None}:
            found[key].append(event["event_id"])
    return dict(found)
