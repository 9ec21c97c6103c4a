"""A table that stopped goes on without the rows that were deleted meanwhile."""

import json
import time
from collections import Counter

import pyarrow as pa
import pytest

from airflow_provider_deltaforge.control import snapshots
from airflow_provider_deltaforge.control.snapshots import CopySelection
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.engine.snapshot.chunk_copy import copy_chunks
from airflow_provider_deltaforge.engine.snapshot.repair import is_of_deletes
from airflow_provider_deltaforge.engine.snapshot.snapshot_run import SnapshotRun
from airflow_provider_deltaforge.engine.verify.extra_rows import extra_rows
from airflow_provider_deltaforge.engine.verify.options import VerifyOptions, VerifyProgress
from airflow_provider_deltaforge.engine.verify.verification import verify
from airflow_provider_deltaforge.events.message import Messages
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.sinks.memory import MemorySink
from airflow_provider_deltaforge.sinks.reader_contract import HeldMessages
from airflow_provider_deltaforge.sources.scripted import ScriptedSource
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.gaps import Gaps
from airflow_provider_deltaforge.storage.records.requests import SnapshotRequest, SnapshotResults
from airflow_provider_deltaforge.storage.records.tables import TableRecords
from tests.engine.driving import Driving
from tests.engine.in_process import InProcess
from tests.engine.verify_run import VerifyRun
from tests.sinks.kafka_reader import read_topic
from tests.waiting import wait_for

TABLE = "script.rows"


def applied(events, *key):
    """Return what a consumer holds that does what each event says."""
    held = {}
    for event in events:
        for image in (event["before"], event["after"]):
            if image is not None:
                held.pop(tuple(image[name] for name in key), None)
        if event["after"] is not None:
            held[tuple(event["after"][name] for name in key)] = event["after"]
    return held


# ---- a table that is computed: thirty keys are delivered, and it has twenty by then


class Shrunk(InProcess):
    """A pipeline whose table stopped, and lost rows while it was passed over."""

    def __init__(self, log="", **settings):
        super().__init__(transactions=40, **settings)
        if log:
            self.document = self.document.replace(f"{self.name}-out", log)
            self.apply()
        self.begin_at(**dict.fromkeys(self.sinks, 0))
        self.driven()
        self.shrink(20)
        stopped = TableRecords(self.store, self.name).stop(TABLE, "no names", 0)
        self.store.transact([stopped])
        self.request = SnapshotRequest(id="copy", requested_at_ms=0, by="a test")
        self.control.update(lambda old: old.model_copy(update={"requests": [self.request]}))

    def shrink(self, keys):
        self.document = self.document.replace(f"keys: {self.keys}", f"keys: {keys}")
        self.keys = keys
        self.apply()

    def driven(self):
        """Deliver the whole log, and serve what is asked for."""
        self.want("running")
        driving = Driving(self)
        wait_for("the end of the log", lambda: self.at() == {40} or driving.outcome)
        wait_for("the requests", lambda: not self.control.read().requests or driving.outcome)
        self.want("stopped")
        assert driving.end().why == "stopped", driving.outcome

    def at(self):
        return {position["tx"] for position in self.checkpoints().load().values()}

    def events(self, sink="out"):
        return [json.loads(message.value) for message in self.log(sink).messages()]

    def table(self):
        """Return the table as it is."""
        source = load(self.document).spec.source
        return {(key,): (tx, row) for tx, row, key in source.events(1, 40)}

    def run(self, **settings):
        settings = {"find_extra": extra_rows, **settings}
        return SnapshotRun(self.context(), self.request, **settings)

    def copy(self, plan, chunks):
        results = copy_chunks(self.job(), plan.run.id, chunks)
        assert [result.outcome for result in results] == [None] * len(chunks)

    def result(self):
        return SnapshotResults(self.store, self.name).of(self.request.ticket)

    def is_equal(self, sink="out"):
        held = applied(self.events(sink), "id")
        return {key: (row["tx"], row["row"]) for key, row in held.items()} == self.table()


def test_what_was_deleted_meanwhile_is_deleted_in_every_sink():
    pipeline = Shrunk(sinks=("out", "other"), policy="schema_sensing: {enabled: true}")
    pipeline.driven()
    for sink in ("out", "other"):
        assert pipeline.is_equal(sink)
        ops = [event["op"] for event in pipeline.events(sink)[-30:]]
        assert ops == ["d"] * 10 + ["r"] * 20, "deletes go first"
    assert (pipeline.result().state, pipeline.result().reason) == ("done", None)
    assert pipeline.result().tables[TABLE]["rows"] == 20
    assert TableRecords(pipeline.store, pipeline.name).stopped() == {}


def test_a_table_that_did_not_stop_is_copied_as_ever():
    pipeline = Shrunk()
    pipeline.store.transact(TableRecords(pipeline.store, pipeline.name).repair([TABLE]))
    pipeline.driven()
    assert Counter(event["op"] for event in pipeline.events()) == {"u": 120, "r": 20}


def test_killed_anywhere_it_goes_on_and_the_ids_stay():
    pipeline = Shrunk()
    plan = pipeline.run().prepare()
    deletes, rows = ([*stage[TABLE]] for stage in plan.stages)
    assert [is_of_deletes(chunk) for chunk in deletes] == [True]
    pipeline.copy(plan, deletes)
    # Killed before that was stored, and again behind it.
    records = pipeline.run()._records
    pipeline.store.transact([records.undone(plan.run.id, deletes[0].id)])
    again = pipeline.run().prepare()
    assert again.run == plan.run
    pipeline.copy(again, [*again.stages[0][TABLE]])
    ids = Counter(
        message.event_id
        for message in pipeline.log().messages()
        if json.loads(message.value)["op"] == "d"
    )
    assert [*ids.values()] == [2] * 10
    pipeline.copy(again, rows[:1])
    pipeline.driven()
    assert pipeline.is_equal()
    assert Counter(event["op"] for event in pipeline.events())["r"] == 20


def test_behind_a_lane_that_passed_more_over_it_begins_anew():
    pipeline = Shrunk()
    begun = pipeline.run().prepare()
    for chunk in begun.remaining[TABLE]:
        pipeline.copy(begun, [chunk])
    # A sink that was rewound meanwhile had a lane run: changes of done chunks were passed over.
    pipeline.begin_at(out=39)
    pipeline.shrink(15)
    again = pipeline.run().prepare()
    assert again.run.id != begun.run.id
    assert len(again.stages[0][TABLE][0].bounds["deletes"]) == 5
    # One that goes on beside a lane was not planned for that.
    stopped = pipeline.run(is_live=True).prepare()
    assert stopped.run.id != again.run.id


def test_rows_of_other_pipelines_stay():
    other = InProcess(transactions=80, keys=50)
    other.begin_at(out=0)
    driving = Driving(other)
    wait_for("its rows", lambda: other.checkpoints().load().get("out") == {"tx": 80})
    other.want("stopped")
    driving.end()
    pipeline = Shrunk(log=f"{other.name}-out")
    plan = pipeline.run().prepare()
    gone = [json.loads(text)["id"] for text in plan.stages[0][TABLE][0].bounds["deletes"]]
    assert sorted(gone) == [*range(21, 31)]


def other_keys(event):
    """Show other keys in row images than their events have."""
    for name in ("before", "after"):
        image = event[name]
        if image is not None:
            event[name] = {**image, "id": image["id"] + 1000}
    return event


def as_they_are(event):
    return event


def python(function):
    return f"{{type: python, function: '{__name__}:{function}', mode: events}}"


def test_rows_of_other_tables_that_processors_may_rename_stay(monkeypatch):
    pipeline = Shrunk(processors=python("as_they_are"))
    assert [chunk.id for chunk in deletes_of(pipeline.run().prepare())]
    own = ScriptedSource.describe
    other = TableSchema("script", None, "others", own(ScriptedSource())[0].columns, ("id",))
    monkeypatch.setattr(ScriptedSource, "describe", lambda source: [*own(source), other])
    pipeline.request = SnapshotRequest(id="again", requested_at_ms=1, by="a test")
    plan = pipeline.run().prepare()
    assert deletes_of(plan) == []
    assert "a processor may give rows of other tables the name of script.rows" in plan.run.notes[0]
    # Nor does a repair of what a verification finds take them away.
    options, document = VerifyOptions(rounds=1), load(pipeline.document)
    found = verify(document, pipeline.store, options, VerifyProgress(), lambda: None)
    assert found.sinks[0].tables[0].extra == 10
    assert {*found.keys["out"][TABLE]} == {"different"}


def test_rows_whose_images_show_other_keys_stay():
    pipeline = Shrunk(processors=python("other_keys"), sink="key: '${source.table}', ")
    plan = pipeline.run().prepare()
    assert deletes_of(plan) == []
    assert f"table {TABLE}: a processor sets the keys that messages show" in plan.run.notes[0]


@pytest.mark.parametrize("template", ["topic: 't${after.row}', ", "key: '${after.row}', "])
def test_no_delete_goes_elsewhere_than_its_row_went(template):
    pipeline = Shrunk(sink=template)
    plan = pipeline.run().prepare()
    assert deletes_of(plan) == []
    assert "sink out sends to a place that the key does not name" in plan.run.notes[0]
    assert deletes_of(Shrunk(sink="key: '${after.id}', ").run().prepare())


@pytest.mark.parametrize("form", ['{"id":"%d"}', '{"id":%d,"row":0}', '{"number":%d}'])
def test_keys_of_a_former_shape_stay(form):
    pipeline = Shrunk()
    held = pipeline.log().messages()[0]
    former = Messages(
        topics=pa.array([held.topic]).dictionary_encode(),
        keys=pa.array([(form % 5).encode()], pa.binary()),
        values=pa.array([held.value], pa.binary()),
        headers=None,
        event_ids=pa.array([held.event_id], pa.binary(16)),
        event_rows=pa.array([0], pa.int32()),
    )
    pipeline.log().write(former)
    plan = pipeline.run().prepare()
    assert len(deletes_of(plan)[0].bounds["deletes"]) == 10
    assert f"table {TABLE}: 1 keys in sinks have a former shape" in plan.run.notes[0]


def deletes_of(plan):
    return [chunk for chunk in plan.remaining[TABLE] if is_of_deletes(chunk)]


def test_a_sink_that_cannot_be_read_is_named_and_gets_what_others_held(capfd):
    pipeline = Shrunk(sinks=("out", "other"))
    memory = f"type: memory, config: {{id: other, log: {pipeline.name}-other, }}"
    assert memory in pipeline.document
    pipeline.document = pipeline.document.replace(memory, "type: stdout, config: {id: other}")
    pipeline.apply()
    pipeline.driven()
    assert pipeline.is_equal()
    lines = capfd.readouterr().out.splitlines()  # Airflow, where it was loaded, logs there, too.
    printed = [json.loads(line) for line in lines if line.startswith("{")]
    assert Counter(event["op"] for event in printed if event["op"] != "u") == {"d": 10, "r": 20}
    shown = snapshots.request_state(pipeline.store, pipeline.name, "copy")
    assert shown.state == "done"
    assert f"deletes of {TABLE} that were passed over may be missing: sink other" in shown.reason


class EndlessReader:
    """Reads back a sink that never ends."""

    notes = ()

    def read(self, topics):
        nothing = pa.array([], pa.binary())
        while True:
            time.sleep(0.01)
            yield HeldMessages(min(topics), 0, nothing, nothing)

    def close(self):
        """Nothing is held."""


@pytest.mark.parametrize("ends", ["stopped", "withdrawn"])
def test_it_ends_while_sinks_are_read(monkeypatch, ends):
    pipeline = Shrunk()
    monkeypatch.setattr(MemorySink, "open_reader", lambda *_: EndlessReader())
    pipeline.want("running")
    driving = Driving(pipeline)
    wait_for("the copy", lambda: pipeline.control.progress().status == "snapshotting")
    if ends == "withdrawn":
        assert snapshots.cancel(pipeline.store, pipeline.name, "copy", "not now")
        wait_for("its end", lambda: pipeline.result() or driving.outcome)
        assert (pipeline.result().state, pipeline.result().reason) == ("cancelled", "not now")
    pipeline.want("stopped")
    assert driving.end().why == "stopped"
    assert [*TableRecords(pipeline.store, pipeline.name).stopped()] == [TABLE]
    left = pipeline.control.read().requests
    assert [request.id for request in left] == ["copy"] * (ends == "stopped")


# ---- real servers


def stop_table(run):
    """Have a table stop that was being delivered; some of its rows go unseen."""
    if not run.is_postgres:
        run.execute(
            "SET binlog_format = STATEMENT",
            "INSERT INTO pair VALUES (100, 'unseen', 1)",
            "DELETE FROM pair WHERE a = 1",
        )
        return
    run.execute(
        "CREATE DOMAIN code AS int",
        "ALTER TABLE pair ADD COLUMN c code[]",
        "INSERT INTO pair VALUES (100, 'unseen', 1, '{1}')",
        "DELETE FROM pair WHERE a = 1",
        "ALTER TABLE pair DROP COLUMN c",
        "DROP DOMAIN code",
    )


def table_of(run):
    rows = run.rows("SELECT a, b, v FROM pair")
    return {(a, b): {"a": a, "b": b, "v": v} for a, b, v in rows}


def held_by(run):
    """Return what blind consumers of each sink hold, and what a compacted topic keeps."""
    read = read_topic(run.kafka.dsn(), f"{run.name}.pair")
    keyed = {message.key: message.value for message in read}
    kept = (json.loads(value)["after"] for value in keyed.values() if value is not None)
    entries = run.redis.xrange(f"{run.name}.pair")
    texts = {
        "kafka": [message.value for message in read if message.value is not None],
        "redis": [fields[b"event"] for _, fields in entries],
        "file": run.file.read_bytes().splitlines(),
    }
    held = {}
    for name, values in texts.items():
        events = [json.loads(value) for value in values]
        mine = [event for event in events if event["source"]["table"] == "pair"]
        held[name] = applied(mine, "a", "b")
    return {**held, "compacted": {(row["a"], row["b"]): row for row in kept if row is not None}}


@pytest.mark.parametrize(
    ("kind", "is_rewound"),
    [
        ("mysql", False),
        pytest.param("mysql", True, marks=pytest.mark.long),
        pytest.param("postgres", False, marks=pytest.mark.long),
    ],
)
def test_consumers_end_equal(kind, is_rewound, request, kafka_server, redis_server, tmp_path):
    server = request.getfixturevalue(f"{kind}_server")
    run = VerifyRun(server, kafka_server, redis_server, tmp_path)
    with run.running():
        wait_for("the stream", lambda: Checkpoints(run.store, run.name, run.name).load())
        begun = Checkpoints(run.store, run.name, run.name).load()["redis"]
    table = f"{'public' if run.is_postgres else run.name}.pair"
    stop_table(run)
    with run.running():
        wait_for("the stop", lambda: table in status(run.store, run.name).stopped_tables)
        run.execute(
            "DELETE FROM pair WHERE a IN (2, 3)",
            "UPDATE pair SET a = 30 WHERE a = 4",
            "DELETE FROM pair WHERE a = 5",
            "INSERT INTO pair VALUES (5, 'k5', -5), (31, 'größer 💶', 0)",
            "UPDATE pair SET v = -1 WHERE a = 6",
        )
        assert held_by(run)["kafka"].keys() != table_of(run).keys()
        snapshots.request(run.store, run.name, CopySelection((table,)), "copy", "me")
        copy = lambda: snapshots.request_state(run.store, run.name, "copy")  # noqa: E731
        wait_for("the copy", lambda: copy().settled)
        assert (copy().state, copy().reason) == ("done", None)
        assert dict.fromkeys(held_by(run), table_of(run)) == held_by(run)
        run.execute("DELETE FROM pair WHERE a = 7", "UPDATE pair SET v = -2 WHERE a = 8")
        wait_for(
            "what follows", lambda: all(rows == table_of(run) for rows in held_by(run).values())
        )
        if is_rewound:
            assert_stops_for_a_rewind(run, table, begun)


def assert_stops_for_a_rewind(run, table, begun):
    """A sink that is given the log again cannot pass the place either: the table stops anew."""
    run.store.transact([Gaps(run.store, run.name).rewind("redis", begun, (), "a test")])
    wait_for("the stop", lambda: table in status(run.store, run.name).stopped_tables)
    run.execute("DELETE FROM pair WHERE a = 9")
    snapshots.request(run.store, run.name, CopySelection((table,)), "again", "me")
    copy = lambda: snapshots.request_state(run.store, run.name, "again")  # noqa: E731
    wait_for("the copy", lambda: copy().settled)
    assert (copy().state, copy().reason) == ("done", None)
    assert dict.fromkeys(held_by(run), table_of(run)) == held_by(run)


SHARDED = "sharding: {mode: hash, count: 4, key: %s}"


def test_no_delete_goes_to_another_shard_than_its_row():
    place = "topic: 't${shard}', key: '${after.id}', "
    plan = Shrunk(sink=place, policy=SHARDED % "row").run().prepare()
    assert deletes_of(plan) == []
    assert "sink out sends to a place that the key does not name" in plan.run.notes[0]


def test_shards_that_the_key_decides_are_deleted_from():
    pipeline = Shrunk(sink="topic: 't${shard}', key: '${after.id}', ", policy=SHARDED % "id")
    assert deletes_of(pipeline.run().prepare())
