"""Triggers and the Airflow connection: looked up seldom, and missed for a moment."""

import asyncio
import json
from contextlib import aclosing

import pytest
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException, AirflowSecretsBackendAccessDenied

from airflow_provider_deltaforge.control import conditions, pipelines
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.hooks import connections
from airflow_provider_deltaforge.storage.records.control import Control
from airflow_provider_deltaforge.triggers.arrival import DeltaForgeArrivalTrigger
from airflow_provider_deltaforge.triggers.condition import ConditionTrigger
from airflow_provider_deltaforge.triggers.failed import DeltaForgeFailureTrigger
from airflow_provider_deltaforge.triggers.snapshot import SnapshotTrigger
from airflow_provider_deltaforge.triggers.stream import StreamTrigger
from tests.airflow.bench import fired, travelled
from tests.control.bench import DOCUMENT
from tests.waiting import PATIENCE_S


@pytest.fixture
def lookups(monkeypatch, dsn):
    """The connection ids that were looked up; ``lookups.errors`` has what a lookup raises."""

    class Lookups(list):
        def __init__(self):
            self.errors = {}

    lookups, whole = Lookups(), BaseHook.get_connection
    extra = {"path": dsn.removeprefix("sqlite:///")}
    value = json.dumps({"conn_type": "deltaforge", "extra": extra})
    monkeypatch.setenv("AIRFLOW_CONN_DELTAFORGE_DEFAULT", value)

    def looked_up(conn_id):
        lookups.append(conn_id)
        if len(lookups) in lookups.errors:
            raise lookups.errors[len(lookups)]
        return whole(conn_id)

    monkeypatch.setattr(BaseHook, "get_connection", staticmethod(looked_up))
    return lookups


@pytest.fixture
def supervised(store, lookups):
    pipelines.apply(store, DOCUMENT)
    record = {"owner": "me", "generation": 1, "desired": "running"}
    Control(store, "orders").update(lambda old: pipelines.changed(old, **record))
    watch = {"pipeline": "orders", "generation": 1, "owner": "me"}
    return travelled(StreamTrigger("deltaforge_default", watch, poll_s=0.01))


def test_a_look_asks_for_the_connection_once_and_the_next_one_not_at_all(supervised, lookups):
    for _ in range(2):
        assert supervised.look()[0] is None
        assert lookups == ["deltaforge_default"]


def test_a_connection_is_asked_for_again_once_the_store_does_not_answer(
    supervised, lookups, monkeypatch
):
    away = '{"conn_type": "deltaforge", "extra": {"path": "/nowhere/state.db"}}'
    with monkeypatch.context() as changed:
        changed.setenv("AIRFLOW_CONN_DELTAFORGE_DEFAULT", away)
        assert "away" in supervised.look()[1]

    assert "away" not in supervised.look()[1]
    assert len(lookups) == 2


@pytest.mark.parametrize("nth", [1, 4])
def test_a_lookup_that_fails_for_a_moment_leaves_the_trigger_running(
    supervised, lookups, store, monkeypatch, nth
):
    monkeypatch.setattr(connections, "KEPT_S", 0)
    lookups.errors[nth] = AirflowNotFoundException("The conn_id isn't defined")
    watching, looks = supervised.look, []

    def look():
        looks.append(1)
        if len(looks) > 2 * nth:
            Control(store, "orders").delete()
        return watching()

    monkeypatch.setattr(supervised, "look", look)

    assert fired(supervised)["event"] == "deleted"


def test_a_connection_that_stays_away_ends_the_trigger_with_the_reason(supervised, lookups):
    error = AirflowNotFoundException("The conn_id isn't defined")
    lookups.errors.update(dict.fromkeys(range(100_000), error))
    supervised.refusal_patience_s = 0.1

    with pytest.raises(AirflowNotFoundException, match="isn't defined"):
        fired(supervised)


WRONG_EXTRAS = [
    pytest.param({"path": "state.db"}, "absolute", id="relative path"),
    pytest.param({}, "names no state store", id="empty"),
    pytest.param(["x"], "JSON object", id="a list"),
    pytest.param({"path": 5}, "absolute", id="a number"),
    pytest.param({"path": "", "launch_backend": "k8s"}, "k8s", id="unknown backend"),
    pytest.param({"path": "", "spark_conf": "x"}, "spark_conf", id="setting of a backend"),
]


def edited(monkeypatch, dsn, extra):
    """Write an extra into the connection, its empty path filled in."""
    if isinstance(extra, dict) and extra.get("path") == "":
        extra = {**extra, "path": dsn.removeprefix("sqlite:///")}
    value = json.dumps({"conn_type": "deltaforge", "extra": extra})
    monkeypatch.setenv("AIRFLOW_CONN_DELTAFORGE_DEFAULT", value)


@pytest.mark.parametrize("kind", [StreamTrigger, SnapshotTrigger])
@pytest.mark.parametrize("extra", [case.values[0] for case in WRONG_EXTRAS])
def test_a_wrong_edit_that_is_mended_ends_no_supervision(
    supervised, store, dsn, monkeypatch, extra, kind
):
    watched = (supervised.deltaforge_conn_id, supervised.watch)
    trigger, looks = travelled(kind(*watched, poll_s=0.01)), []
    watching = trigger.look
    edited(monkeypatch, dsn, extra)

    def look():
        looks.append(1)
        if len(looks) == 3:
            edited(monkeypatch, dsn, {"path": ""})
        if len(looks) == 5:
            Control(store, "orders").delete()
        return watching()

    monkeypatch.setattr(trigger, "look", look)
    event = fired(trigger)

    assert (event["event"], event["reason"]) == ("deleted", "the pipeline was deleted")
    assert len(looks) == 5


@pytest.mark.parametrize(("extra", "words"), WRONG_EXTRAS)
def test_a_wrong_edit_that_stays_ends_the_trigger_with_the_reason(
    supervised, dsn, monkeypatch, extra, words
):
    edited(monkeypatch, dsn, extra)
    supervised.refusal_patience_s = 0.1

    with pytest.raises(SpecError, match=words):
        fired(supervised)


def test_a_condition_waits_for_a_wrong_edit_to_be_mended(supervised, dsn, monkeypatch):
    trigger, looks = ConditionTrigger("deltaforge_default", "orders", conditions.at_rest()), []
    trigger.poll_s, watching = 0.01, trigger.look
    edited(monkeypatch, dsn, {"path": "", "launch_backend": "k8s"})

    def look():
        looks.append(1)
        if len(looks) == 3:
            edited(monkeypatch, dsn, {"path": ""})
            trigger.until_ms = 1
        return watching()

    monkeypatch.setattr(trigger, "look", look)

    assert fired(trigger)["pipeline"] == "orders"
    assert len(looks) == 3


def test_a_connection_that_is_denied_ends_the_trigger_at_once(supervised, lookups):
    lookups.errors[1] = AirflowSecretsBackendAccessDenied("not yours")

    with pytest.raises(AirflowSecretsBackendAccessDenied):
        fired(supervised)
    assert len(lookups) == 1


def test_a_condition_is_looked_at_with_one_lookup(supervised, lookups):
    ConditionTrigger("deltaforge_default", "orders", conditions.at_rest()).look()

    assert len(lookups) == 1


@pytest.mark.parametrize("watcher", [DeltaForgeArrivalTrigger, DeltaForgeFailureTrigger])
def test_a_watcher_goes_on_after_a_lookup_that_failed(supervised, lookups, watcher):
    lookups.errors[1] = AirflowNotFoundException("The conn_id isn't defined")
    trigger = travelled(watcher("orders", poll_s=0.01))

    async def goes_on():
        async with aclosing(trigger.run()) as events:
            first = asyncio.ensure_future(anext(events))
            while len(lookups) < 2 and not first.done():
                await asyncio.sleep(0.01)
            first.cancel()
            await asyncio.wait([first])
            return first.cancelled()

    assert asyncio.run(asyncio.wait_for(goes_on(), PATIENCE_S))
