"""Assets of tables: their names, the events that rows make of them, and what tasks add."""

import asyncio
import json
import signal
from contextlib import suppress
from datetime import timedelta
from urllib.parse import urlsplit

import pytest
from airflow.sdk import Asset
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_provider_deltaforge.assets import tables
from airflow_provider_deltaforge.assets.tables import asset_uri, deltaforge_asset, table_of
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from airflow_provider_deltaforge.operators.stream import DeltaForgeStreamOperator
from airflow_provider_deltaforge.storage.records.control import Control, Progress
from airflow_provider_deltaforge.storage.records.stats import SinkProgress, TableCounts
from airflow_provider_deltaforge.triggers.arrival import DeltaForgeArrivalTrigger
from tests.airflow.bench import context, deferred, fired, travelled
from tests.airflow.test_failure_trigger import AssetStorage
from tests.engine.frozen import freeze_between_writes, signal_all
from tests.servers.process import family
from tests.waiting import wait_until


@pytest.mark.parametrize(
    ("table", "uri"),
    [
        ("shop.orders", "deltaforge://p-1.x/shop/orders"),
        (None, "deltaforge://p-1.x/"),
        ('"a.b".c', "deltaforge://p-1.x/a.b/c"),
        ("shop.a/b c?#%", "deltaforge://p-1.x/shop/a%2Fb%20c%3F%23%25"),
        ("shop.Größe", "deltaforge://p-1.x/shop/Gr%C3%B6%C3%9Fe"),
    ],
)
def test_a_table_has_one_uri_and_back(table, uri):
    assert asset_uri("p-1.x", table) == uri
    assert table_of(uri) == ("p-1.x", table)
    assert tables.sanitize_uri(urlsplit(uri)).geturl() == uri
    assert Asset(uri).uri.rstrip("/") == uri.rstrip("/")


def test_airflow_asks_our_handler():
    assert Asset("deltaforge://orders/shop/%6frders/").uri == "deltaforge://orders/shop/orders"
    for wrong in ("deltaforge://a@b/c", "deltaforge:///shop/orders", "deltaforge://o/t?x=1"):
        with pytest.raises(ValueError, match="deltaforge://pipeline/db/table"):
            Asset(wrong)
    with pytest.raises(SpecError, match="no name of a pipeline"):
        asset_uri("a/b")


def test_a_dag_can_be_scheduled_by_it():
    asset = deltaforge_asset("orders", "shop.orders", interval=timedelta(minutes=5))
    (watcher,) = asset.watchers

    assert (asset.name, asset.uri) == ("deltaforge://orders/shop/orders",) * 2
    assert travelled(watcher.trigger).interval_s == 300


def test_assets_of_other_names_have_triggers_of_their_own():
    """Airflow makes one trigger of equal ones, and one trigger cannot keep notes for two assets."""

    def row(**more):
        (watcher,) = deltaforge_asset("orders", "shop.orders", **more).watchers
        return DeltaForgeArrivalTrigger.hash(*travelled(watcher.trigger).serialize())

    assert row() == row()
    assert len({row(), row(name="finance"), row(uri="x-finance://orders"), row(name="hr")}) == 4
    assert row(name="hr", group="people") == row(name="hr")


def beat(store, durable, tx, *, generation=1, gaps=0, status="running"):
    """Let the driver of `orders` say what has arrived."""
    counts = {f"shop.{name}": TableCounts(durable=rows) for name, rows in durable.items()}
    progress = Progress(
        status="running",
        since_ms=1,
        epoch=1,
        generation=generation,
        heartbeat_at_ms=1,
        position={"tx": tx},
        tables=counts,
        count_gaps=gaps,
        sinks={"out": SinkProgress(status=status)},
    )
    store.transact([Control(store, "orders").put_progress(progress)])


def watcher(storage, **more):
    quick = {"interval_s": 0.0, "poll_s": 0.02}
    trigger = travelled(DeltaForgeArrivalTrigger("orders", **{**quick, **more}))
    trigger.asset_state_store = storage
    return trigger


def heard(trigger, *acts, looks=3):
    """The events of a trigger; each act is done after some looks."""
    left, quiet = list(acts), 0

    async def looked(shared_stream):
        nonlocal quiet
        async for seen in shared_stream:
            yield seen
            quiet += 1
            if quiet >= looks:
                if not left:
                    raise EOFError
                left.pop(0)()
                quiet = 0

    async def collect():
        events = []
        stream = trigger.open_shared_stream(trigger.serialize()[1])
        with suppress(EOFError):
            async for event in trigger.filter_shared_stream(looked(stream)):
                events.append(event.payload)
        return events

    return asyncio.run(collect())


@pytest.mark.usefixtures("connection")
class TestArrivals:
    def test_rows_fire_with_what_arrived_and_up_to_where(self, store):
        beat(store, {"orders": 5, "items": 1}, 5)
        trigger = watcher(AssetStorage(), table="shop.orders")
        events = heard(
            trigger,
            lambda: beat(store, {"orders": 5, "items": 9}, 6),
            lambda: beat(store, {"orders": 8, "items": 9}, 7),
        )

        assert events == [
            {
                "pipeline": "orders",
                "tables": {"shop.orders": 3},
                "rows": 3,
                "exact": True,
                "position": {"tx": 7},
                "from_position": {"tx": 5},
                "generation": 1,
            }
        ]

    def test_a_pipeline_that_never_ran_begins_with_nothing(self, store):
        events = heard(watcher(AssetStorage()), lambda: beat(store, {"a": 2, "b": 1}, 1))

        assert [event["tables"] for event in events] == [{"shop.a": 2, "shop.b": 1}]

    def test_a_restarted_triggerer_goes_on_where_it_was(self, store):
        storage = AssetStorage()
        beat(store, {"orders": 5}, 5)
        assert heard(watcher(storage)) == []
        beat(store, {"orders": 9}, 9)

        assert [event["rows"] for event in heard(watcher(storage))] == [4]
        assert heard(watcher(storage)) == []
        assert json.loads(json.dumps(storage.held))  # As Airflow stores it.

    def test_an_event_that_nobody_took_fires_again(self, store):
        storage = AssetStorage()
        beat(store, {"orders": 5}, 5)
        heard(watcher(storage))
        beat(store, {"orders": 9}, 9)
        first = fired(watcher(storage))

        assert heard(watcher(storage)) == [first]

    @pytest.mark.parametrize("change", [{"gaps": 1}, {"generation": 2}])
    def test_rows_that_nobody_counted_fire_too(self, store, change):
        beat(store, {"orders": 5}, 5)
        events = heard(
            watcher(AssetStorage()),
            lambda: beat(store, {}, 5, **change),  # The log has not moved.
            lambda: beat(store, {}, 6, **change) if "gaps" in change else None,
            lambda: beat(store, {"orders": 20}, 9, **change),
        )

        exact = [(event["exact"], event["position"]["tx"]) for event in events]
        assert exact == ([(False, 6), (True, 9)] if "gaps" in change else [(True, 9)])

    def test_events_keep_their_distance(self, store):
        beat(store, {"orders": 1}, 1)
        acts = [lambda n=n: beat(store, {"orders": n}, n) for n in range(2, 6)]

        assert len(heard(watcher(AssetStorage(), interval_s=60.0), *acts)) == 1

    def test_a_sink_that_is_behind_is_waited_for(self, store):
        beat(store, {"orders": 1}, 1)
        events = heard(
            watcher(AssetStorage(), sink="out"),
            lambda: beat(store, {"orders": 2}, 2, status="behind"),
            lambda: beat(store, {"orders": 2}, 2),
        )

        assert [event["rows"] for event in events] == [1]

    def test_a_store_that_is_away_is_waited_for(self, store, store_away):
        storage = AssetStorage()
        beat(store, {"orders": 1}, 1)
        heard(watcher(storage))
        beat(store, {"orders": 2}, 2)
        trigger = watcher(storage)

        async def away_at_first():
            with store_away():
                first = asyncio.ensure_future(anext(trigger.run()))
                done, _ = await asyncio.wait([first], timeout=0.3)
                assert not done
            return (await first).payload

        assert asyncio.run(away_at_first())["rows"] == 1

    def test_triggers_of_one_pipeline_share_a_look(self):
        keys = {watcher(None, table=table).shared_stream_key() for table in ("a", "b", None)}

        assert len(keys) == 1
        assert watcher(None, poll_s=9.0).shared_stream_key() not in keys

    def test_a_streams_outlets_tell_what_arrived_in_its_window(
        self, document, store, backend, tmp_path
    ):
        ours, other = deltaforge_asset("orders", "script.rows"), Asset("s3://bucket/orders")
        operator = DeltaForgeStreamOperator(
            task_id="stream",
            document=document,
            outlets=[ours, other, deltaforge_asset("orders", "script.none")],
            window=timedelta(seconds=0),
            poll_interval=timedelta(seconds=0.05),
        )
        trigger = travelled(deferred(lambda: operator.execute(context())))
        wait_until(lambda: DeltaForgeHook().get_status("orders").status == "running")
        pids = family(Control(store, "orders").read().handle["pid"])
        freeze_between_writes(pids, tmp_path / "state.db")  # What is written below stays.
        progress = Control(store, "orders").progress()
        arrived = {"script.rows": TableCounts(durable=7)}
        newer = progress.model_copy(update={"tables": arrived, "position": {"tx": 3}})
        store.transact([Control(store, "orders").put_progress(newer)])
        told = {"outlet_events": OutletEventAccessors()}
        operator.execute_complete(told, {**trigger.watch, "event": "window_over"})
        signal_all(pids, signal.SIGCONT)

        extras = [told["outlet_events"][asset].extra for asset in operator.outlets]
        assert [(extra["rows"], extra["tables"]) for extra in extras] == [
            (7, {"script.rows": 7}),
            (7, {"script.rows": 7}),
            (0, {}),
        ]
        assert {extra["pipeline"] for extra in extras} == {"orders"}
