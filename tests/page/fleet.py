"""Pipelines in every state, as their drivers would have left them, for pictures and for tests."""

import json
import math
import threading
import time
from contextlib import closing, contextmanager

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.events.schema import Column, TableSchema
from airflow_provider_deltaforge.schemas.registry import Registry
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.control import Control, Progress, heartbeat
from airflow_provider_deltaforge.storage.records.data_drift import (
    ColumnDrift,
    DataDriftRecords,
    TableDataDrift,
)
from airflow_provider_deltaforge.storage.records.dead_letters import DeadLetterRecords
from airflow_provider_deltaforge.storage.records.gaps import Gaps
from airflow_provider_deltaforge.storage.records.history import History, MinuteSample
from airflow_provider_deltaforge.storage.records.requests import (
    SnapshotRequest,
    SnapshotResults,
    result_of,
)
from airflow_provider_deltaforge.storage.records.rewinds import Rewinds
from airflow_provider_deltaforge.storage.records.sensing import (
    Evolution,
    SensedTable,
    SensedTables,
    SensedValue,
)
from airflow_provider_deltaforge.storage.records.snapshots import SnapshotRecord, Snapshots
from airflow_provider_deltaforge.storage.records.stats import (
    DeadLetterCounts,
    Latency,
    SinkProgress,
    TableCounts,
)
from airflow_provider_deltaforge.storage.records.tables import TableRecords
from airflow_provider_deltaforge.storage.records.verifications import (
    DifferingKeys,
    SinkComparison,
    TableComparison,
    Verification,
    Verifications,
)

HOSTILE = (
    "<img src=x onerror=\"document.title='taken'\">",
    "<script>document.title='taken'</script>",
    "\u202eevil\u202c עברית مرحبا",
    "🦆" * 20,
    "w" * 300,
    "`code` \u0000 &amp; ${PASSWORD} {{7*7}}".replace("\u0000", ""),
)
OWNER = "serve:cdc-1:4711:5ad0c0de"
_BEAT_S = 1.0


def fill(store, owner=OWNER, *, hostile=True):
    """Write the records of pipelines; return what renews their heartbeats.

    Args:
        store: the state store.
        owner: of their drivers.
        hostile: one of them has names and values that look like markup.
    """
    orders = _Pipeline(store, "orders", "acme", {"team": "shop", "tier": "1"}, owner)
    orders.says("running", events=1_284_300, lag_ms=41, tables=_TABLES, sinks=_sinks("running"))
    _add_schemas(store, "acme", "orders-db")
    _add_history(store, "orders")
    _add_rewinds(store, "orders", "airflow:refill/again/r1/-1#9f")
    _add_copies(store, "orders", finished=True)
    _add_verification(store, "orders", ['{"id":4711}', '{"id":4712}'])
    for number, customer in enumerate([4711, 4711, 208]):
        row = {"id": 512_300 + number, "customer": customer, "amount": "19.90", "note": None}
        _set_aside(store, "orders", "orders", row, "kafka", _TOO_LARGE)
    payments = _Pipeline(store, "payments", "acme", {"team": "billing", "tier": "1"}, owner)
    reason = "mysql at db-2:3306: Access denied for user 'cdc'@'10.0.0.7' (using password: YES)"
    payments.says("failed", events=88_210, error_class="access", reason=reason)
    stock = _Pipeline(store, "stock", "globex", {"team": "shop", "tier": "2"}, owner)
    reason = "sink cache: redis at 10.0.0.9:6379 does not answer (connection refused)"
    blocked = {"cache": SinkProgress(status="blocked", reason=reason, events=5_120, retries=31)}
    stock.says("blocked", events=5_120, error_class="retryable", reason=reason, sinks=blocked)
    clicks = _Pipeline(store, "clicks", "globex", {"team": "web", "tier": "3"}, owner)
    _add_structure(store, "clicks", "globex", ["web", "app"], ['"12,50"', '"n/a"'])
    clicks.says("snapshotting", events=61_002)
    _add_copies(store, "clicks", finished=False)
    filled = [orders, payments, stock, clicks]
    return [*filled, _visitors(store, owner)] if hostile else filled


def _visitors(store, owner):
    labels = {"team": HOSTILE[0], "rtl": HOSTILE[2]}
    visitors = _Pipeline(store, "visitors", "acme", labels, owner)
    sinks = {
        "kafka": SinkProgress(status="behind", reason="\n".join(HOSTILE), lag_ms=93_000, events=12),
        "cache": SinkProgress(status="given_up", reason=HOSTILE[1], events=7),
    }
    counts = {f"shop.{name}": TableCounts(events={"c": 3, "t": 1}) for name in HOSTILE}
    visitors.says("running", events=19, lag_ms=93_000, sinks=sinks, tables=counts)
    store.transact([TableRecords(store, "visitors").stop(f"shop.{HOSTILE[1]}", HOSTILE[0], 1)])
    _add_structure(store, "visitors", "acme", HOSTILE, HOSTILE)
    _add_verification(store, "visitors", HOSTILE)
    _add_rewinds(store, "visitors", HOSTILE[0])
    for text in HOSTILE:
        _set_aside(store, "visitors", text, {text: text}, "kafka", text)
    return visitors


@contextmanager
def beating(dsn, filled):
    """Renew heartbeats while the block runs, from a thread of its own."""
    over = threading.Event()

    def beat():
        with closing(StoreLocation.from_dsn(dsn).open()) as store:
            while not over.wait(_BEAT_S):
                for pipeline in filled:
                    pipeline.beat(store)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    yield
    over.set()
    thread.join()


class _Pipeline:
    def __init__(self, store, name, tenant, labels, owner):
        document = {
            "apiVersion": "deltaforge/v1",
            "kind": "Pipeline",
            "metadata": {"name": name, "tenant": tenant, "labels": labels},
            "spec": {
                "source": {"type": "scripted", "config": {"id": f"{name}-db"}},
                "sinks": [
                    {"type": "file", "config": {"id": "files", "path": f"/tmp/{name}.jsonl"}}
                ],
                "journal": {"enabled": True},
                "schema_sensing": {"enabled": name in {"clicks", "visitors"}},
            },
        }
        self.store, self.name = store, name
        self.control = Control(store, name)
        pipelines.apply(store, json.dumps(document))
        started = {"desired": "running", "generation": 1, "owner": owner}
        self.control.update(lambda old: old.model_copy(update=started))
        self.fence = self.control.take_epoch(f"driver of {name}")

    def says(self, status, **more):
        self.progress = Progress(
            status=status,
            since_ms=_ago_ms(4200 if status == "running" else 95),
            epoch=self.fence.version,
            generation=1,
            dlq=DeadLetterCounts(max_entries=10_000),
            bytes=more.get("events", 0) * 310,
            position={"file": "binlog.000042", "pos": 88_121_004},
            **heartbeat(None),
            **more,
        )
        self.beat(self.store)

    def beat(self, store):
        if self.progress.status == "failed" and self.progress.beat > 1:
            return
        if self.progress.status == "running":
            more = self.progress.events + 1_190
            self.progress = self.progress.model_copy(update={"events": more})
        self.progress = self.progress.model_copy(update=heartbeat(self.progress))
        store.transact([Control(store, self.name).put_progress(self.progress)], self.fence)


_TOO_LARGE = "kafka sink kafka: topic 'orders' takes messages of at most 1,048,576 bytes"
_TABLES = {
    "shop.orders": TableCounts(events={"r": 512_000, "c": 401_200, "u": 310_075, "d": 1_204}),
    "shop.order_items": TableCounts(events={"r": 44_000, "c": 15_200, "u": 621}),
}


def _sinks(status):
    more = {"status": status, "position": {"file": "binlog.000042", "pos": 88_121_004}}
    return {
        "kafka": SinkProgress(
            **more, events=1_284_300, bytes=398_133_000, checkpoint_ms=_ago_ms(1)
        ),
        "search": SinkProgress(
            status="catching_up",
            reason="http at search:9200 did not answer for 12 s",
            lag_ms=8_400,
            events=1_271_007,
            bytes=391_022_118,
            retries=9,
            position={"file": "binlog.000042", "pos": 71_904_233},
            checkpoint_ms=_ago_ms(9),
        ),
    }


def _add_rewinds(store, name, by):
    """Write a rewind that runs, one that was refused meanwhile, and one that is requested."""
    checkpoints = Checkpoints(store, name, f"{name}-db")
    rewinds, to = Rewinds(store, name), {"file": "binlog.000040", "pos": 4}
    begun = rewinds.begin("search", to, {"pos": 9}, ["shop.orders"], by)
    asked = Gaps(store, name).rewind("kafka", {"file": HOSTILE[1], "pos": 4}, (), by)
    store.transact([rewinds.put(begun), asked, checkpoints.put("files", {"tx": 90})])
    store.transact([rewinds.refuse("search", to, by, f"no log {HOSTILE[0]}")])


def _ago_ms(seconds):
    return int((time.time() - seconds) * 1000)


def _add_schemas(store, tenant, source_id):
    def table(*columns):
        return TableSchema("shop", None, "orders", tuple(columns), ("id",))

    key = _column("id", "bigint", 1, nullable=False)
    note = _column("note", "varchar(40)", 2)
    longer = _column("note", "varchar(200)", 2)
    added = _column("amount", "decimal(10,2)", 3, nullable=False)
    registry = Registry(store, source_id, tenant)
    registry.register_all([(table(key, note), {"pos": 4})])
    registry.register_all([(table(key, longer, added), {"pos": 88})])


def _column(name, kind, ordinal, **more):
    return Column(
        name=name,
        column_type=kind,
        data_type=kind.partition("(")[0],
        ordinal_position=ordinal,
        **{"nullable": True, **more},
    )


def _add_history(store, name):
    now = int(time.time()) // 60
    samples = []
    for minute in range(now - 60 * 20, now + 1):
        wave = 1 + 0.6 * math.sin(minute / 47) + 0.25 * math.sin(minute / 5.3)
        stall = 25 <= now - minute < 31
        events = 0 if stall else int(70_000 * wave)
        counts = [0] * 14
        if not stall:
            counts[3:8] = [int(events * part) for part in (0.4, 0.4, 0.15, 0.04, 0.01)]
        lag = 1000 * 60 * (31 - (now - minute)) if stall else int(30 + 20 * wave)
        samples.append(
            MinuteSample(
                minute=minute,
                seconds=60.0,
                events=events,
                bytes=events * 300,
                lag_ms=lag,
                lag_max_ms=int(lag * 1.6),
                latency=Latency(counts=counts, sum_s=events * 0.02),
            )
        )
    store.transact(History(store, name).puts(samples))


def _add_verification(store, name, keys):
    tables = [
        TableComparison(
            table="shop.orders", rows=512_000, missing=len(keys), examples={"missing": [*keys]}
        ),
        TableComparison(table=f"shop.{keys[0]}", rows=44_000),
        TableComparison(table="shop.log", reason="the table has no key"),
    ]
    found = Verification(id="9925d1771133", by=f"rest: {keys[0]}", started_at_ms=_ago_ms(900))
    records = Verifications(store, name)
    assert records.begin(found)
    found = found.model_copy(
        update={
            "state": "finished",
            "verdict": "different",
            "finished_at_ms": _ago_ms(840),
            "rows": 556_000,
            "sinks": [
                SinkComparison(sink="kafka", tables=tables, notes=[keys[-1]]),
                SinkComparison(sink="hook", reason="not readable: webhooks keep nothing"),
            ],
        }
    )
    differing = {"kafka": {"shop.orders": {"missing": [*keys]}}}
    records.finish(found, DifferingKeys(id=found.id, keys=differing))


def _add_copies(store, name, *, finished):
    snapshots = Snapshots(store, name)
    tables = {
        "shop.orders": {"chunks": 40, "rows_estimate": 512_000},
        "shop.order_items": {"chunks": 8, "rows_estimate": 44_000},
    }
    run = SnapshotRecord(
        id="r1",
        generation=1,
        started_at_ms=_ago_ms(61),
        start_position={"pos": 4},
        chunk_count=48,
        tables=tables,
    )
    store.transact(snapshots.begin(run, []))
    done = [(number, "shop.order_items", 5_500) for number in range(8)]
    done += [(number, "shop.orders", 12_800) for number in range(8, 48 if finished else 17)]
    store.transact(
        [snapshots.chunk_done("r1", f"c{number}", table, rows, {}) for number, table, rows in done]
    )
    if not finished:
        return
    store.transact(snapshots.finish(run))
    waiting = SnapshotRequest(
        id="rest-5b1f", tables=["shop.orders"], requested_at_ms=_ago_ms(20), by="rest: token ann"
    )
    served = SnapshotRequest(
        id="month-end",
        tables=["shop.orders"],
        where="id > 500000",
        requested_at_ms=_ago_ms(3600),
        by="rest: token ann",
    )
    counted = {"shop.orders": {"chunks": 1, "rows": 12_000}}
    store.transact(SnapshotResults(store, name).put(result_of(served, "done", tables=counted)))
    Control(store, name).update(lambda old: old.model_copy(update={"requests": [waiting]}))


def _add_structure(store, name, tenant, words, samples):
    """Write what sensing has learned of a table whose column ``meta`` is JSON, and its drift."""
    first, last = _ago_ms(7200), _ago_ms(5)
    fields = {
        "source": SensedValue(types=["string"], seen=900, values=dict.fromkeys(words, 300)),
        "tags": SensedValue(types=["array"], elements=SensedValue(types=["string"])),
        words[0]: SensedValue(types=["null", "integer"], optional=True, nulls=3, seen=90),
    }
    meta = SensedValue(types=["object"], fields=fields)
    row = SensedValue(types=["object"], fields={"id": SensedValue(types=["integer"]), "meta": meta})
    began = Evolution(sequence=1, fingerprint="0b691f41a9cb4289", at_ms=first)
    changed = Evolution(
        sequence=2, fingerprint="1b160b1f10064210", at_ms=last, added=[f"meta.{words[0]}"]
    )
    shared = {
        "tenant": tenant,
        "table": "shop.clicks",
        "first_seen_ms": first,
        "last_seen_ms": last,
        "event_count": 61_002,
        "stabilized": True,
        "cache_hits": 60_410,
        "cache_misses": 592,
        "evolutions": [began, changed],
        "sequence": 2,
        "fingerprint": changed.fingerprint,
    }
    tables = SensedTables(store, name, tenant)
    drift = TableDataDrift(
        table="shop.clicks",
        fingerprint="sha256:1b16",
        spec_hash="",
        since_ms=first,
        events_analyzed=61_002,
        events_with_drift=42,
        columns=[
            ColumnDrift(
                column="price",
                drift_type="type_mismatch",
                expected="decimal(10,2)",
                observed=["string"],
                count=42,
                first_seen_ms=first,
                last_seen_ms=last,
                samples=samples[:5],
            )
        ],
    )
    sensed = [
        SensedTable(root=row, **shared),
        SensedTable(root=meta, column="meta", **shared),
    ]
    writes = [*map(tables.put, sensed), *DataDriftRecords(store, name).put([drift])]
    store.transact(writes)


def add_backfill(store, name):
    """Write what a backfill of three days by Airflow leaves of its requests."""
    for day in (5, 6, 7):
        run = f"backfill__2026-01-{day + 1:02}T00:00:00+00:00"
        where = (
            f"changed >= '2026-01-{day:02} 00:00:00' AND changed < '2026-01-{day + 1:02} 00:00:00'"
        )
        served = SnapshotRequest(
            id=f"airflow:orders_resnapshot/snapshot/{run}/-1",
            tables=["shop.orders"],
            where=where,
            requested_at_ms=_ago_ms(300 - day),
            by=f"airflow:orders_resnapshot/snapshot/{run}/-1#1@0123abcd",
        )
        counted = {"shop.orders": {"chunks": 3, "rows": 11_400 + day * 37}}
        store.transact(SnapshotResults(store, name).put(result_of(served, "done", tables=counted)))


def _set_aside(store, name, table, row, sink, why):
    source = {"connector": "mysql", "db": "shop", "table": table, "pos": 88_120_411}
    entry = {
        "v": 1,
        "timestamp": int(time.time()) - 60,
        "pipeline": name,
        "event_id": "6c41dd12-89d5-844d-9293-c68c8183472b",
        "event": {"op": "c", "before": None, "after": row, "source": source},
        "meta": {"sink_id": sink, "error_kind": "too_large", "error_message": why},
    }
    store.transact([DeadLetterRecords(store, name).push(json.dumps(entry).encode())])
