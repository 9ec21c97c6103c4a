"""Another server answers: the position is followed or lost by name, tables are compared."""

import threading

import orjson
import pyarrow as pa
import pytest

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.engine.lane.lane import Lane
from airflow_provider_deltaforge.engine.read.registrar import registry_of
from airflow_provider_deltaforge.engine.read.source_identity import SourceIdentity
from airflow_provider_deltaforge.errors import (
    FencedError,
    PositionLostError,
    SchemaError,
    ServerChangedError,
)
from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA
from airflow_provider_deltaforge.events.schema import Column, TableSchema
from airflow_provider_deltaforge.sources.scripted import ScriptedSource
from airflow_provider_deltaforge.storage.records.failover import Failovers
from tests.engine.in_process import InProcess
from tests.waiting import PATIENCE_S, wait_until


def table(key="id", db="shop", name="t", **columns):
    made = [Column("id", "int", "int", ordinal_position=1)]
    made += [Column(c, kind, kind, ordinal_position=2) for c, kind in columns.items()]
    return TableSchema(db, None, name, tuple(made), (key,))


class Servers:
    """Which server answers the scripted source, and how it differs."""

    def __init__(self, monkeypatch):
        self.name = "A"
        self.lost = None
        self.lost_at = None
        self.tables = {}
        self.policy = "adapt"
        for method in ("identity", "reach", "catalog"):
            fake = getattr(self, method)
            monkeypatch.setattr(
                ScriptedSource, method, lambda _, *asked, fake=fake: fake(*asked), raising=False
            )
        monkeypatch.setattr(ScriptedSource, "logs_schema_changes", True)
        monkeypatch.setattr(
            ScriptedSource, "on_schema_drift", property(lambda _: self.policy), raising=False
        )

    def identity(self):
        return {"type": "scripted", "name": self.name}

    def reach(self, position):
        if self.lost is not None and self.lost_at in (None, position["tx"]):
            raise PositionLostError(self.lost)

    def catalog(self, tables):
        return {t.full_name: self.tables.get(t.full_name, t) for t in tables}


@pytest.fixture
def servers(monkeypatch):
    return Servers(monkeypatch)


@pytest.fixture
def pipeline():
    made = InProcess()
    made.begin_at(out=5)
    return made


def records(pipeline):
    return Failovers(pipeline.store, f"{pipeline.name}-source")


def outcomes(pipeline):
    return [(r.former["name"], r.present["name"], r.state) for r in records(pipeline).history()]


def succession(pipeline, context=None):
    context = context or pipeline.context()
    return SourceIdentity(context, registry_of(context))


def opened(pipeline, at=5):
    """Settle as a lane does that opens the log; return what goes on with it."""
    context = pipeline.context()
    made = succession(pipeline, context)
    store(context, made.settle(None if at is None else {"tx": at}))
    return context, made


def store(context, writes):
    context.store.transact(writes, context.fence)


def known_tables(pipeline, *tables):
    registry_of(pipeline.context()).register_all([(each, {"tx": 1}) for each in tables])


def statement(sql, *tables, database="shop"):
    told = {"sql": sql, "database": database, "tables": list(tables)}
    row = {"op": "ddl", "db": database, "table": "_ddl", "ts_ms": 0, "tx": 0, "row": 0}
    row |= {"tx_end": True, "event_id": bytes(16), "ddl": orjson.dumps(told)}
    return pa.RecordBatch.from_pylist([row], schema=CHANGE_SCHEMA)


def run(pipeline, until=None):
    """Run a lane until it ends; or until the checkpoint is there, and stop it then."""
    lane = Lane(pipeline.context(), 60.0)
    ended = []
    thread = threading.Thread(target=lambda: ended.append(lane.run()), daemon=True)
    thread.start()
    if until is not None:
        wait_until(lambda: ended or pipeline.checkpoints().load().get("out") == {"tx": until})
        pipeline.want("stopped")
    thread.join(PATIENCE_S)
    pipeline.want("running")
    return ended[0]


def test_the_first_server_is_remembered_and_the_same_one_goes_on(servers, pipeline):
    opened(pipeline)
    assert records(pipeline).identity() == servers.identity()
    _, again = opened(pipeline)
    assert again.settle({"tx": 5}) == []
    assert records(pipeline).latest() is None


def test_a_reachable_position_is_followed_without_gap_or_repetition(servers, pipeline):
    opened(pipeline)
    servers.name = "B"
    assert run(pipeline, until=20).why == "stopped"
    assert len(pipeline.log().messages()) == 15 * 3
    assert records(pipeline).identity() == servers.identity()
    assert outcomes(pipeline) == [("A", "B", "done")]
    # What is settled is not done again.
    assert run(pipeline, until=20).why == "stopped"
    assert outcomes(pipeline) == [("A", "B", "done")]


def test_each_change_of_server_is_settled_also_back_and_forth(servers, pipeline):
    opened(pipeline)
    for name in "BAB":
        servers.name = name
        opened(pipeline)
    assert outcomes(pipeline) == [("A", "B", "done"), ("B", "A", "done"), ("A", "B", "done")]


def test_a_lost_position_fails_with_the_command_that_repairs_it(servers, pipeline):
    opened(pipeline)
    servers.name, servers.lost = "B", "position lost after failover: A:7-9. Re-snapshot required"
    for _ in range(3):  # A supervisor may try more than once.
        ended = run(pipeline)
    name = pipeline.name
    assert (ended.why, ended.error_class) == ("failed", "position_lost")
    assert servers.lost in ended.reason
    for command in (f"deltaforge reset {name} --confirm {name}", "deltaforge run FILE"):
        assert command in ended.reason
    assert pipeline.log().messages() == []
    assert records(pipeline).identity()["name"] == "A"
    assert outcomes(pipeline) == [("A", "B", "failed")]

    # The command does repair it.
    servers.lost = None
    pipeline.want("stopped")
    pipelines.reset_checkpoint(pipeline.store, name, confirm=name)
    servers.lost = "not asked: nothing has been read"
    pipeline.want("running")
    assert run(pipeline, until=20).why == "stopped"
    assert records(pipeline).identity()["name"] == "B"
    assert outcomes(pipeline)[-1] == ("A", "B", "done")


@pytest.mark.parametrize("name", ["A", "B"])
def test_a_sink_that_is_ahead_of_what_a_server_has_is_refused_too(servers, name):
    pipeline = InProcess(sinks=("out", "far"))
    pipeline.begin_at(out=5, far=9)
    opened(pipeline)
    servers.name, servers.lost, servers.lost_at = name, "tx 9 never happened here", 9
    ended = run(pipeline)
    assert ended.error_class == "position_lost"
    assert servers.lost in ended.reason
    assert pipeline.log("far").messages() == []


def test_a_repaired_server_is_followed_after_a_failure(servers, pipeline):
    opened(pipeline)
    servers.name, servers.lost = "B", "behind"
    assert run(pipeline).error_class == "position_lost"
    servers.lost = None
    assert run(pipeline, until=20).why == "stopped"
    assert len(pipeline.log().messages()) == 15 * 3
    assert outcomes(pipeline) == [("A", "B", "failed"), ("A", "B", "done")]


def drifted(servers, pipeline, live, *, policy, at=20):
    """Fail over to a server with another table; at 20 nothing is left to be read of the log."""
    known_tables(pipeline, table(n="int"), table(name="same"))
    opened(pipeline, at)
    servers.name, servers.policy = "B", policy
    servers.tables = {"shop.t": live}
    return opened(pipeline, at)


@pytest.mark.parametrize(
    ("live", "told"),
    [
        (table(n="int", m="text"), "shop.t.m: column_added (nothing -> text)"),
        (table(), "shop.t.n: column_dropped (int -> nothing)"),
        (table(n="bigint"), "shop.t.n: column_type_changed (int -> bigint)"),
        (None, "shop.t: table_dropped"),
    ],
)
def test_drift_halts_where_asked_and_a_restart_does_not_pass_it(servers, pipeline, live, told):
    with pytest.raises(SchemaError) as halted:
        drifted(servers, pipeline, live, policy="halt")
    text = str(halted.value)
    assert "schema drift detected after failover and on_schema_drift=halt" in text
    assert told in text
    assert "same" not in text
    # Somebody writes on: the log now ends later, and still nothing may pass.
    servers.tables["shop.same"] = table(name="same", new="int")
    assert run(pipeline).error_class == "schema"
    assert pipeline.log().messages() == []
    assert records(pipeline).identity()["name"] == "A"

    servers.policy = "adapt"
    assert run(pipeline, until=20).why == "stopped"
    assert outcomes(pipeline)[-1] == ("A", "B", "done")


def test_a_table_dropped_before_the_failover_is_no_drift(servers, pipeline):
    known_tables(pipeline, table(n="int"), table(name="same"), table(name="later"))
    servers.policy, servers.tables = "halt", {"shop.t": None}
    # Dropped while nobody read; and, in a statement that was read, just before the other server.
    context, reading = opened(pipeline, 20)
    reading.watch(statement("DROP TABLE `later`", "shop.later"))
    store(context, reading.passed({"tx": 20})[0])
    servers.name, servers.tables = "B", {"shop.t": None, "shop.later": None}
    opened(pipeline, 20)
    assert outcomes(pipeline) == [("A", "B", "done")]


def test_a_table_made_anew_before_the_failover_is_drift_when_it_is_missing(servers, pipeline):
    known_tables(pipeline, table(n="int"))
    servers.policy, servers.tables = "halt", {"shop.t": None}
    context, reading = opened(pipeline, 20)
    reading.watch(statement("CREATE TABLE t (id int)", "shop.t"))
    store(context, reading.passed({"tx": 20})[0])
    servers.name = "B"
    with pytest.raises(SchemaError, match=r"shop\.t: table_dropped"):
        opened(pipeline, 20)


def test_drift_is_adapted_to(servers, pipeline):
    live = table(n="int", m="text")
    context, _ = drifted(servers, pipeline, live, policy="adapt")
    assert registry_of(context).latest("shop", None, "t").schema == live
    assert records(pipeline).latest().drift[0]["column"] == "m"
    assert outcomes(pipeline) == [("A", "B", "done")]


@pytest.mark.parametrize("policy", ["adapt", "halt"])
def test_a_changed_primary_key_stops_in_both_modes(servers, pipeline, policy):
    with pytest.raises(SchemaError, match=r"primary_key_changed \(id -> n\).*deltaforge reset"):
        drifted(servers, pipeline, table("n", n="int"), policy=policy)


@pytest.mark.parametrize("policy", ["adapt", "halt"])
@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("ALTER TABLE t ADD COLUMN M text", ["shop.t"]),
        ("RENAME TABLE t TO _t_del, _t_gho TO t", ["shop.t", "shop._t_del", "shop._t_gho"]),
        ("DROP DATABASE shop", []),
    ],
)
def test_a_difference_the_log_explains_is_no_drift(servers, pipeline, policy, sql, tables):
    context, reading = drifted(servers, pipeline, table(n="int", m="text"), policy=policy, at=5)
    assert records(pipeline).latest().state == "reading"
    assert records(pipeline).identity()["name"] == "A"
    reading.watch(statement(sql, *tables))
    writes, ends_by = reading.passed({"tx": 8})
    assert ends_by is None
    store(context, writes)

    # Killed here: the next lane begins behind the statement, and knows of it all the same.
    context, after = opened(pipeline, 8)
    writes, ends_by = after.passed({"tx": 20})
    assert ends_by is None
    store(context, writes)
    assert outcomes(pipeline) == [("A", "B", "done")]
    assert records(pipeline).identity()["name"] == "B"


UNRELATED = [
    statement("ALTER TABLE t ADD INDEX (n)", "shop.t"),
    statement("ALTER TABLE other ADD COLUMN m text", "shop.other"),
    statement("DROP DATABASE archive", database="archive"),
]


@pytest.mark.parametrize("unrelated", UNRELATED)
def test_what_the_log_does_not_explain_is_drift_once_it_is_read(servers, pipeline, unrelated):
    live = table(n="int", m="text")
    context, reading = drifted(servers, pipeline, live, policy="halt", at=5)
    reading.watch(unrelated)
    assert reading.passed({"tx": 19})[1] is None
    writes, ends_by = reading.passed({"tx": 20})
    assert isinstance(ends_by, SchemaError)
    store(context, writes)
    assert outcomes(pipeline) == [("A", "B", "failed")]
    assert run(pipeline).error_class == "schema"


def test_drift_that_is_adapted_to_later_opens_the_log_anew(servers, pipeline):
    live = table(n="int", m="text")
    context, reading = drifted(servers, pipeline, live, policy="adapt", at=5)
    writes, ends_by = reading.passed({"tx": 20})
    assert isinstance(ends_by, ServerChangedError)
    store(context, writes)
    assert registry_of(context).latest("shop", None, "t").schema == live
    assert opened(pipeline, 20)[1].passed({"tx": 20}) == ([], None)
    assert outcomes(pipeline) == [("A", "B", "done")]


def test_a_driver_that_is_over_settles_nothing(servers, pipeline):
    opened(pipeline)
    old, made = opened(pipeline)
    pipeline.context()
    servers.name, servers.lost = "B", "gone"
    with pytest.raises(FencedError):
        made.settle({"tx": 5})
    assert records(pipeline).latest() is None
    with pytest.raises(FencedError):
        store(old, [records(pipeline).meet({"name": "C"})])
    assert records(pipeline).identity()["name"] == "A"
