"""Records of every released format are read, and later or damaged ones refused and kept."""

import json
import re

import pytest

from airflow_provider_deltaforge.errors import FatalError
from airflow_provider_deltaforge.schemas.registry import Registry, SchemaEntry
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.memory import MemoryStore
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoint, Checkpoints
from airflow_provider_deltaforge.storage.records.control import Control, ControlRecord, Progress
from airflow_provider_deltaforge.storage.records.dead_letters import (
    Damaged,
    DeadLetter,
    DeadLetterRecords,
)
from airflow_provider_deltaforge.storage.records.failover import (
    Failovers,
    KnownServer,
    Reconciliation,
)
from airflow_provider_deltaforge.storage.records.sensing import SensedTable, SensedTables
from airflow_provider_deltaforge.storage.records.snapshots import (
    ChunkDone,
    SnapshotRecord,
    Snapshots,
)

FIRST_FORMAT = {
    ControlRecord: (
        b'{"v":1,"desired":"paused","generation":3,"spec_hash":"h","source_id":"shop",'
        b'"owner":"dag","handle":{"pid":1},"snapshot_request":{"tables":["a.b"]},'
        b'"restarts":[1,2],"updated_at_ms":5}'
    ),
    Progress: (
        b'{"v":1,"status":"blocked","since_ms":1,"epoch":2,"generation":3,"heartbeat_at_ms":4,'
        b'"reason":"r","error_class":"retryable","batch_id":5,"position":{"pos":6},'
        b'"head_position":null,"lag_ms":7,"events":8,"bytes":9,"batches":10,"sinks":{"k":'
        b'{"status":"blocked","since_ms":1,"reason":"r","error_class":"retryable","position":null,'
        b'"checkpoint_ms":2,"events":3,"bytes":4,"batches":5,"retries":6}},"tables":{"a.b":'
        b'{"events":{"c":1}}},"extra":{},"host":"h","pid":11,"application_id":"app"}'
    ),
    Checkpoint: b'{"v":1,"position":{"file":"binlog.000001","pos":4},"updated_at_ms":5}',
    SnapshotRecord: (
        b'{"v":1,"id":"r","generation":1,"started_at_ms":2,"start_position":{"pos":3},'
        b'"chunk_count":1,"tables":{"a.b":{"chunks":1,"rows_estimate":4}},'
        b'"wish":{"tables":["a.b"]},"finished_at_ms":5,"cancelled":null}'
    ),
    KnownServer: b'{"v":1,"identity":{"type":"my_sql","server_uuid":"u"},"seen_at_ms":2}',
    Reconciliation: (
        b'{"v":1,"id":"0123456789abcdef","former":{"type":"my_sql","server_uuid":"a"},'
        b'"present":{"type":"my_sql","server_uuid":"b"},"state":"failed",'
        b'"on_schema_drift":"halt","position":{"gtid_set":"a:1-5"},"head":{"gtid_set":"a:1-9"},'
        b'"drift":[{"table":"shop.t","kind":"column_added","column":"x","was":null,"now":"int"}],'
        b'"explained":[],"reason":"r","error_class":"schema","started_at_ms":1,"ended_at_ms":2}'
    ),
    DeadLetter: (
        b'{"v":1,"timestamp":2,"pipeline":"orders","stream":"dlq","event_id":"e",'
        b'"source_cursor":{"file":"binlog.000001","pos":4},"event":{"before":null,'
        b'"after":{"id":1},"op":"c"},"payload_truncated":false,"meta":{"sink_id":"kafka",'
        b'"processor_id":null,"error_kind":"routing","error_message":"why","attempts":1}}'
    ),
    ChunkDone: b'{"v":1,"table":"a.b","rows":1,"cut":{"pos":2},"finished_at_ms":3}',
    SchemaEntry: (
        b'{"v":1,"hash":"sha256:ab","table":{"db":"shop","schema":null,"table":"orders","columns":'
        b'[{"name":"id","data_type":"int","column_type":"int(10) unsigned","nullable":false,'
        b'"ordinal_position":1,"unsigned":true,"extra":"auto_increment"},{"name":"state",'
        b'"data_type":"enum","column_type":"enum(\'a\',\'b\')","ordinal_position":2,'
        b'"charset":"utf8mb4","collation":"utf8mb4_bin","labels":["a","b"]}],'
        b'"primary_key":["id"]},"position":{"file":"binlog.000001","pos":4}}'
    ),
    SensedTable: (
        b'{"v":1,"tenant":"acme","table":"shop.orders","column":"data","fingerprint":"93b405a7f84b'
        b'00c2","sequence":2,"event_count":3,"sampled":3,"first_seen_ms":4,"last_seen_ms":5,'
        b'"cache_hits":2,"cache_misses":1,"root":{"types":["object"],"seen":3,"fields":{"id":'
        b'{"types":["integer"],"seen":3},"kind":{"types":["null","string"],"seen":3,"nulls":1,'
        b'"values":{"a":2}},"sessions":{"types":["object"],"optional":true,"seen":2,"dynamic":'
        b'{"types":["array"],"elements":{"types":["number"]},"values":null}}}},"maps":[{"path":'
        b'["sessions"],"objects":2,"keys":4,"next_decision":100,"decided":"map","confidence":0.75,'
        b'"unique_keys":4,"distinct":"AgEHDAMI","frequent":"BAEKBw==","examples":["s1"]}],'
        b'"evolutions":[{"sequence":1,"fingerprint":"520ccc32edeef1c2","at_ms":4},{"sequence":2,'
        b'"fingerprint":"93b405a7f84b00c2","at_ms":5,"added":["sessions"]}]}'
    ),
}


@pytest.fixture
def store():
    return MemoryStore()


@pytest.mark.parametrize(("kind", "text"), FIRST_FORMAT.items())
def test_the_first_format_of_every_record_is_read(kind, text):
    record = kind.from_stored(text, "it")
    assert record.v == 1
    # One field of the first release was never written by anything; later ones have been added.
    told = {key: value for key, value in json.loads(text).items() if key != "snapshot_request"}
    assert _within(told, json.loads(record.model_dump_json()))


def _within(told, found):
    if isinstance(told, dict):
        return all(key in found and _within(value, found[key]) for key, value in told.items())
    if isinstance(told, list):
        return len(told) == len(found) and all(map(_within, told, found))
    return told == found


def test_what_an_entry_leaves_out_means_what_it_meant(store):
    store.append(names.SCHEMAS, "acme/orders", FIRST_FORMAT[SchemaEntry])
    (version,) = Registry(store, "orders", "acme").all()
    key, state = version.schema.columns

    assert (key.nullable, key.charset, key.labels, key.default_value) == (False, None, (), None)
    assert (state.nullable, state.unsigned, state.labels) == (True, False, ("a", "b"))
    assert version.fingerprint == "sha256:ab"


def _readers(store):
    return {
        ControlRecord: Control(store, "orders").read,
        Progress: Control(store, "orders").progress,
        Checkpoint: Checkpoints(store, "orders", "shop").load,
        SnapshotRecord: Snapshots(store, "orders").current,
        ChunkDone: lambda: Snapshots(store, "orders").done("r"),
        SchemaEntry: Registry(store, "orders", "acme").all,
        DeadLetter: lambda: list(DeadLetterRecords(store, "orders").read()),
        KnownServer: Failovers(store, "orders").identity,
        Reconciliation: Failovers(store, "orders").latest,
        SensedTable: SensedTables(store, "orders", "acme").all,
    }


_PLACES = {
    Progress: (names.PROGRESS, "orders"),
    Checkpoint: (names.CHECKPOINTS, "orders/shop::sink::kafka"),
    SnapshotRecord: (names.SNAPSHOTS, "orders/run"),
    ChunkDone: (names.SNAPSHOTS, "orders/done/r/c1"),
    KnownServer: (names.FAILOVER, "identity:orders"),
    Reconciliation: (names.FAILOVER, "orders/reconciliation"),
    SensedTable: (names.SENSING, "orders/acme/shop.orders:data"),
}


def _keep(store, kind, text):
    if kind is ControlRecord:
        store.swap(names.CONTROL, "orders", 0, text)
    elif kind is SchemaEntry:
        store.append(names.SCHEMAS, "acme/orders", text)
    elif kind is DeadLetter:
        store.push(names.JOURNAL, "orders:dlq", text)
    else:
        store.put(*_PLACES[kind], text)


_REFUSED = [kind for kind in FIRST_FORMAT if kind is not DeadLetter]


@pytest.mark.parametrize("kind", _REFUSED)
def test_a_record_of_a_later_release_is_refused_with_the_way_out(store, kind):
    later = FIRST_FORMAT[kind].replace(b'"v":1', b'"v":2,"new":"?"')
    _keep(store, kind, later)
    with pytest.raises(FatalError, match=r"orders.* has format 2, .* up to 1: upgrade"):
        _readers(store)[kind]()


def test_a_dead_letter_of_a_later_release_stands_there_with_the_way_out(store):
    later = FIRST_FORMAT[DeadLetter].replace(b'"v":1', b'"v":2,"new":"?"')
    _keep(store, DeadLetter, later)
    _keep(store, DeadLetter, FIRST_FORMAT[DeadLetter])
    unread, readable = DeadLetterRecords(store, "orders").stored()
    assert isinstance(unread.dead_letter, Damaged)
    assert unread.text == later
    assert re.search(
        r"orders.* has format 2, .* up to 1: upgrade", unread.dead_letter.meta.error_message
    )
    assert not isinstance(readable.dead_letter, Damaged)


def test_a_control_record_of_a_later_release_is_not_overwritten(store):
    later = FIRST_FORMAT[ControlRecord].replace(b'"v":1', b'"v":2')
    _keep(store, ControlRecord, later)
    with pytest.raises(FatalError, match="upgrade"):
        Control(store, "orders").update(lambda old: old)
    assert store.slot(names.CONTROL, "orders").state == later


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        pytest.param(b"{", "JSON", id="cut off"),
        pytest.param(b"[]", "JSON", id="no object"),
        pytest.param(b'{"v":1,"status":"sleepy"}', "epoch", id="fields missing"),
        pytest.param(b'{"v":1,"unheard":"sleepy"}', "unheard", id="field too many"),
        pytest.param(b'{"v":"2"}', "v", id="format no number"),
    ],
)
def test_a_damaged_record_names_its_fields_and_no_values(store, text, wrong):
    _keep(store, Progress, text)
    with pytest.raises(FatalError, match=wrong) as caught:
        Control(store, "orders").progress()
    assert "sleepy" not in str(caught.value)
