import asyncio
from contextlib import suppress
from unittest.mock import patch

import pytest

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.control.starting import start
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from airflow_provider_deltaforge.triggers.failed import DeltaForgeFailureTrigger
from tests.airflow.bench import travelled
from tests.control.bench import DOCUMENT, job_of, wait_until

pytestmark = pytest.mark.usefixtures("connection")


class AssetStorage:
    def __init__(self):
        self.held = {}

    async def aget(self, key, default=None):
        return self.held.get(key, default)

    async def aset(self, key, value):
        self.held[key] = value


def watcher(storage, **more):
    trigger = travelled(DeltaForgeFailureTrigger("orders", **{"poll_s": 0.05, **more}))
    trigger.asset_state_store = storage
    return trigger


async def heard(trigger, meanwhile=lambda: None, looks=4):
    """What a watcher tells before it has looked some more times without telling anything."""
    events, quiet = [], 0
    ask = DeltaForgeHook.aget_status

    async def counting(*words):
        nonlocal quiet
        quiet += 1
        if quiet == looks:
            raise EOFError
        return await ask(*words)

    with patch.object(DeltaForgeHook, "aget_status", counting), suppress(EOFError):
        async for event in trigger.run():
            events.append(event.payload)
            quiet = 0
            await asyncio.to_thread(meanwhile)
    return events


@pytest.fixture
def fail(store, backend, dsn):
    def fail(error_class):
        former = status(store, "orders", backend) if pipelines_of(store) else None
        pipelines.apply(store, DOCUMENT)
        pipelines.ask_to_stop(store, "orders")
        start(store, job_of(dsn, f"fail:{error_class}"), backend, "test")
        generation = former.generation if former else 0
        wait_until(lambda: status(store, "orders", backend).generation > generation)
        wait_until(lambda: status(store, "orders", backend).status == "failed")

    return fail


def pipelines_of(store):
    from airflow_provider_deltaforge.storage.records.control import Control

    return Control.list_pipelines(store)


def test_a_failure_fires_once_and_the_next_one_again(fail):
    storage = AssetStorage()
    fail("position_lost")
    left = ["position_lost"]
    told = asyncio.run(heard(watcher(storage), meanwhile=lambda: left and fail(left.pop())))

    assert [(event["error_class"], event["generation"]) for event in told] == [
        ("position_lost", 1),
        ("position_lost", 2),
    ]
    assert told[0]["reason"] == "binlog.000002 is gone"
    assert asyncio.run(heard(watcher(storage))) == []  # A triggerer that was restarted.


def test_a_failure_that_nobody_took_fires_again(fail):
    storage = AssetStorage()
    fail("position_lost")

    async def killed_while_it_tells():
        return (await anext(watcher(storage).run())).payload

    first = asyncio.run(killed_while_it_tells())
    assert asyncio.run(heard(watcher(storage))) == [first]
    assert asyncio.run(heard(watcher(storage))) == []


@pytest.mark.parametrize(
    ("happened", "asked", "count"),
    [
        ("access", "position_lost", 0),
        ("access", None, 1),
        ("retryable", None, 0),
        ("retryable", "retryable", 1),
    ],
)
def test_only_the_class_that_was_asked_for_fires(fail, happened, asked, count):
    fail(happened)

    assert len(asyncio.run(heard(watcher(AssetStorage(), error_class=asked)))) == count


def test_a_pipeline_that_is_not_there_yet_is_waited_for():
    assert asyncio.run(heard(watcher(AssetStorage()))) == []


def test_equal_watchers_are_one_row_for_airflow_and_others_are_not():
    def row(**more):
        path, arguments = DeltaForgeFailureTrigger("orders", **more).serialize()
        return DeltaForgeFailureTrigger.hash(path, arguments)

    assert row() == row()
    assert row() != row(error_class="position_lost")
