"""Data drift as DAGs use it: a run that fails when there is some, and one that waits for it."""

import asyncio
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from airflow_provider_deltaforge.sensors.deltaforge import DeltaForgeDriftSensor
from airflow_provider_deltaforge.storage.records.data_drift import DataDriftRecords
from airflow_provider_deltaforge.storage.records.sensing import SensedTables
from tests.airflow.bench import context, fired, travelled
from tests.control.bench import DOCUMENT
from tests.sensing.test_drift_answers import MAY, column, record, sensed

pytestmark = pytest.mark.usefixtures("connection")

SEEN = datetime.fromtimestamp(MAY / 1000 + 60, timezone.utc)


@pytest.fixture
def drifted(store):
    pipelines.apply(store, f"{DOCUMENT}  schema_sensing: {{enabled: true}}\n")
    store.transact(
        [
            *DataDriftRecords(store, "orders").put(
                [record("shop.orders", column("n", "type_mismatch", 2)), record("shop.others")]
            ),
            SensedTables(store, "orders", "acme").put(sensed("shop.others", "metadata", 0)),
        ]
    )
    return store


def of_run(started):
    return {**context(), "dag_run": SimpleNamespace(start_date=started, run_after=started)}


def sensor(**more):
    return DeltaForgeDriftSensor(
        **{"task_id": "drift", "pipeline": "orders", "poke_interval": 0.05, **more}
    )


@pytest.mark.parametrize("deferrable", [True, False])
def test_a_run_fails_on_drift_that_was_seen_since_it_began(drifted, deferrable):
    before, after = (SEEN + timedelta(seconds=seconds) for seconds in (-1, 1))
    with pytest.raises(AirflowFailException, match=r"data drift: shop\.orders: type_mismatch of n"):
        sensor(deferrable=deferrable).execute(of_run(before))
    assert sensor(deferrable=deferrable).execute(of_run(after)) == []
    for since in ("ever", "2026-05-01T12:00:00Z", before):
        with pytest.raises(AirflowFailException):
            sensor(deferrable=deferrable, since=since).execute(of_run(after))
    only = sensor(deferrable=deferrable, since="ever", tables="others, nothing")
    assert only.execute(of_run(after)) == []


def test_a_run_waits_until_there_is_drift(drifted):
    waiting = sensor(when_drift="succeed")
    with pytest.raises(TaskDeferred) as caught:
        waiting.execute(of_run(SEEN + timedelta(seconds=1)))
    late = column("m", "unexpected_null", last_seen_ms=MAY + 90_000)
    drifted.transact(DataDriftRecords(drifted, "orders").put([record("shop.t", late)]))
    found = waiting.execute_complete({}, fired(travelled(caught.value.trigger)))
    assert [table["table"] for table in found] == ["shop.t"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({"when_drift": "warn"}, "when_drift must be"), ({"since": "yesterday"}, "no time")],
)
def test_a_wrong_argument_fails_at_once(drifted, arguments, words):
    with pytest.raises(AirflowFailException, match=words):
        sensor(**arguments).execute(of_run(SEEN))


def test_a_pipeline_that_senses_nothing_fails_with_the_key_to_set(drifted):
    pipelines.apply(drifted, DOCUMENT)
    with pytest.raises(AirflowFailException, match=r"set spec\.schema_sensing\.enabled"):
        sensor().execute(of_run(SEEN))


def test_the_hook_answers(drifted):
    hook = DeltaForgeHook()

    async def asked():
        return [
            await hook.aget_drift("orders", "2026-05-01T12:00:00Z"),
            await hook.aget_table_drift("orders", "orders", since="1h"),
            await hook.aget_sensed_schemas("orders"),
            await hook.aget_sensed_schema("orders", "others:metadata"),
            await hook.aget_json_schema("orders", "others:metadata", dialect="draft-07"),
        ]

    drift, table, schemas, schema, exported = asyncio.run(asked())
    assert [found["has_drift"] for found in drift] == [True, False]
    assert (table["table"], table["has_drift"]) == ("shop.orders", False)
    assert [found["table"] for found in schemas] == ["shop.others:metadata"]
    assert schema["fields"][0]["name"] == "metadata.brand"
    assert exported["$schema"].startswith("http://json-schema.org/draft-07")
    with pytest.raises(SpecError, match="no drift data"):
        hook.get_table_drift("orders", "nothing")
