import asyncio
import inspect
import json
import threading
from datetime import timedelta

import pytest
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.control.starting import start
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.errors import RetryableError, SpecError
from airflow_provider_deltaforge.hooks.connections import dsn_of
from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from airflow_provider_deltaforge.schemas.registry import Registry
from airflow_provider_deltaforge.sources.scripted import ScriptedSource
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.dead_letters import (
    DeadLetterFilter,
    DeadLetterRecords,
)
from tests.control.bench import DOCUMENT, job_of, wait_until
from tests.schemas.registered import register


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"extra": {"path": "/a/state.db"}}, "sqlite:////a/state.db", id="file"),
        pytest.param(
            {"host": "db", "port": 5433, "login": "df", "password": "p@s/s", "schema": "cdc"},
            "postgresql://df:p%40s%2Fs@db:5433/cdc",
            id="postgres",
        ),
        pytest.param(
            {"host": "db", "extra": {"sslmode": "require"}},
            "postgresql://db/deltaforge?sslmode=require",
            id="defaults",
        ),
    ],
)
def test_a_connection_names_the_store(fields, expected):
    assert dsn_of(connection_of(fields)) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"host": "::1", "port": 1}, {"host": "::1", "port": "1"}, id="IPv6"),
        pytest.param({"host": "[::1]"}, {"host": "::1"}, id="in brackets"),
        pytest.param(
            {"host": "fe80::1%eth0", "port": 1}, {"host": "fe80::1%eth0", "port": "1"}, id="zone"
        ),
        pytest.param(
            {"host": "/var/run/postgresql", "port": 1, "schema": "a"},
            {"host": "/var/run/postgresql", "port": "1", "dbname": "a"},
            id="socket",
        ),
        pytest.param({"host": "a,b", "port": 1}, {"host": "a,b", "port": "1,1"}, id="two hosts"),
        pytest.param(
            {"host": "a:2, [::1]:3,::1", "port": 1},
            {"host": "a,::1,::1", "port": "2,3,1"},
            id="with ports of their own",
        ),
        pytest.param({"host": "db", "schema": "100%"}, {"dbname": "100%"}, id="percent"),
        pytest.param({"host": "db", "schema": "a#b?c/d"}, {"dbname": "a#b?c/d"}, id="marks"),
        pytest.param(
            {
                "host": "db",
                "extra": {
                    "sslmode": "verify-full",
                    "sslrootcert": "/c a+.pem",
                    "sslcert": "/c.pem",
                    "sslkey": "/k.pem",
                },
            },
            {
                "sslmode": "verify-full",
                "sslrootcert": "/c a+.pem",
                "sslcert": "/c.pem",
                "sslkey": "/k.pem",
            },
            id="TLS",
        ),
    ],
)
def test_libpq_reads_what_stands_in_the_form(fields, expected):
    read = conninfo_to_dict(dsn_of(connection_of({"login": "u", "password": "p@:/", **fields})))

    whole = {"user": "u", "password": "p@:/", "dbname": "deltaforge", "host": "db", **expected}
    assert read == whole


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        pytest.param({}, "names no state store", id="empty"),
        pytest.param({"extra": {"path": "state.db"}}, "absolute", id="relative"),
        pytest.param({"host": "db", "extra": {"path": "/a"}}, "keep one", id="both"),
        pytest.param({"extra": {"path": 5}}, "absolute.*got 5", id="a number"),
        pytest.param({"extra": ["x"]}, "JSON object", id="a list"),
        pytest.param({"extra": []}, "JSON object", id="an empty list"),
        pytest.param({"host": "db", "password": "p"}, "without a login", id="no login"),
        pytest.param({"host": "db", "extra": {"sslcrl": "/a"}}, "'sslcrl' is not", id="sslcrl"),
        pytest.param({"host": "db", "extra": {"sslmode": 1}}, "must be text", id="no text"),
    ],
)
def test_an_unclear_connection_is_refused(fields, match):
    with pytest.raises(SpecError, match=match):
        dsn_of(connection_of(fields))


def test_an_extra_that_is_not_json_is_refused():
    found = connection_of({"host": "db"})
    found.extra = '{"path": '

    with pytest.raises(SpecError, match="JSON object"):
        dsn_of(found)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param({"launch_backend": "k8s"}, "'k8s'", id="unknown backend"),
        pytest.param({"kubernetes_launcher": "x"}, "kubernetes_launcher", id="setting of one"),
        pytest.param(["x"], "JSON object", id="a list"),
        pytest.param({"path": 5}, "must be absolute", id="a number"),
    ],
)
def test_the_forms_test_finds_an_edit_that_no_task_could_work_with(
    store, dsn, monkeypatch, change, words
):
    extra = {"path": dsn.removeprefix("sqlite:///")}
    extra = {**extra, **change} if isinstance(change, dict) else change
    value = json.dumps({"conn_type": "deltaforge", "extra": extra})
    monkeypatch.setenv("AIRFLOW_CONN_DELTAFORGE_DEFAULT", value)
    reached, told = DeltaForgeHook().test_connection()

    assert not reached
    assert words in told


def connection_of(fields):
    from airflow.sdk import Connection

    extra = json.dumps(fields.get("extra", {}))
    return Connection(conn_id="c", conn_type="deltaforge", **{**fields, "extra": extra})


@pytest.fixture
def running(connection, store, backend, dsn):
    pipelines.apply(store, DOCUMENT)
    store.transact([Checkpoints(store, "orders", "shop-db").put("files", {"tx": 4})])
    start(store, job_of(dsn), backend, "test")
    wait_until(lambda: status(store, "orders", backend).status == "running")
    return store


EXPECTED = {
    "pipelines": ["orders"],
    "control": 1,
    "status": "running",
    "checkpoints": {"files": {"tx": 4}},
    "lag": timedelta(milliseconds=12),
    "snapshot_progress": None,
    "snapshot_requests": [],
}


def shown(name, value):
    return {"control": "generation", "status": "status"}.get(name) and getattr(
        value, {"control": "generation", "status": "status"}[name]
    )


@pytest.mark.parametrize("name", EXPECTED)
def test_the_hook_shows_the_status(running, name):
    hook = DeltaForgeHook()
    arguments = () if name == "pipelines" else ("orders",)
    told = getattr(hook, f"get_{name}")(*arguments)
    told_later = asyncio.run(getattr(hook, f"aget_{name}")(*arguments))

    assert (shown(name, told) or told) == EXPECTED[name]
    assert (shown(name, told_later) or told_later) == EXPECTED[name]


def test_the_hook_shows_what_is_set_aside_and_makes_room(connection, store):
    pipelines.apply(store, DOCUMENT)
    queue = DeadLetterRecords(store, "orders")
    meta = {"error_message": "why", "error_kind": "routing"}
    told = {"timestamp": 1, "pipeline": "orders", "event_id": "e", "event": {"op": "c"}}
    for sink in ("files", "kafka", "files"):
        one = json.dumps({"v": 1, **told, "meta": {**meta, "sink_id": sink}})
        store.transact([queue.push(one.encode())])
    hook = DeltaForgeHook()

    async def later():
        return (
            await hook.aget_dead_letters("orders", sink="files"),
            await hook.aget_dead_letter_count("orders"),
        )

    found, count = asyncio.run(later())
    assert (found, count) == (hook.get_dead_letters("orders", sink="files"), 3)
    assert [one["meta"]["sink_id"] for one in found] == ["files", "files"]
    assert hook.get_dead_letters("orders", kind="other") == []
    ticket = hook.replay_dead_letters("orders", DeadLetterFilter(sink="files"), "drop")
    assert hook.get_replay("orders", ticket) is None
    (asked,) = hook.get_control("orders").replays
    assert (asked.ticket, asked.which.sink, asked.overtaken) == (ticket, "files", "drop")
    assert hook.ack_dead_letters("orders", found[0]["seq"]) == 1
    assert hook.purge_dead_letters("orders") == 2
    assert hook.get_dead_letter_count("orders") == 0


def test_the_hook_shows_schemas(connection, store):
    pipelines.apply(store, DOCUMENT)
    source = ScriptedSource(alter_every=10)
    registry = Registry(store, "shop-db", "acme")
    for tx in (0, 10):
        register(registry, source.schema_of(tx), {"tx": tx})
    hook = DeltaForgeHook()

    async def later():
        return (
            await hook.aget_schemas("orders"),
            await hook.aget_schema("orders", "script.rows", version=1),
            await hook.aget_schema_versions("orders", "rows"),
        )

    told = hook.get_schemas("orders"), hook.get_schema("orders", "rows", version=1)
    assert (*told, hook.get_schema_versions("orders", "rows")) == asyncio.run(later())
    assert [one["registry_version"] for one in told[0]] == [2]
    assert told[1]["fingerprint"] == source.schema_of(0).fingerprint
    assert hook.get_schema("orders", "rows", at="2999-01-01") == hook.get_schema("orders", "rows")


def test_whatever_can_be_asked_can_be_asked_without_blocking():
    asked = {name for name, _ in inspect.getmembers(DeltaForgeHook) if name.startswith("get_")}
    ours = {name for name in asked if name in vars(DeltaForgeHook)} - {"get_conn"}

    assert {f"get_{name}" for name in EXPECTED} <= ours
    for name in ours:
        assert inspect.iscoroutinefunction(getattr(DeltaForgeHook, f"a{name}")), name


def test_the_event_loop_goes_on_while_the_store_does_not_answer(connection, monkeypatch):
    """A triggerer has one loop for every stream: the store is asked in another thread."""
    from airflow_provider_deltaforge.storage.location import StoreLocation

    loop_went_on = threading.Event()

    def slow(_):
        assert loop_went_on.wait(60), "the event loop was blocked"
        raise RetryableError("away")

    monkeypatch.setattr(StoreLocation, "open", slow)

    async def both():
        asking = asyncio.create_task(DeltaForgeHook().aget_pipelines())
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.01, loop_went_on.set)
        await asking

    with pytest.raises(RetryableError, match="away"):
        asyncio.run(both())


def test_the_hook_changes_what_is_wanted(running, backend):
    hook = DeltaForgeHook()
    seen = []
    for act, word in ((hook.pause, "paused"), (hook.resume, "running")):
        act("orders")
        wait_until(lambda word=word: hook.get_status("orders").status == word)
        seen.append(hook.get_control("orders").desired)
    hook.stop("orders")

    assert seen == ["paused", "running"]
    assert hook.get_status("orders").status == "stopped"
    assert hook.get_lag("orders") is None


def test_nothing_is_opened_when_the_hook_is_made(monkeypatch):
    monkeypatch.delenv("AIRFLOW_CONN_DELTAFORGE_DEFAULT", raising=False)

    assert DeltaForgeHook("no_such_connection").deltaforge_conn_id == "no_such_connection"


@pytest.mark.parametrize(
    ("connection_uri", "told"),
    [
        pytest.param("deltaforge://", "names no state store: set the extra `path`", id="empty"),
        pytest.param("deltaforge:///?path=state.db", "`path` must be absolute", id="relative"),
        pytest.param(
            "deltaforge:///?path=/proc/none/s.db", "the first pipeline that is applied", id="none"
        ),
        pytest.param("deltaforge://127.0.0.1:1/db", "Is the server up", id="away"),
    ],
)
def test_the_test_button_says_what_is_wrong_and_what_to_do(monkeypatch, connection_uri, told):
    monkeypatch.setenv("AIRFLOW_CONN_DELTAFORGE_DEFAULT", connection_uri)
    reached, words = DeltaForgeHook().test_connection()

    assert not reached
    assert told in words


def test_the_test_button_names_a_connection_that_is_not_there():
    reached, words = DeltaForgeHook("no_such_connection").test_connection()

    assert not reached
    assert "no_such_connection" in words


def test_the_test_button_counts(running):
    assert DeltaForgeHook().test_connection() == (True, "state store opened; 1 pipeline")
