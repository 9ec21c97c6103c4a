"""Whatever befalls the search for data drift, events are delivered."""

from types import SimpleNamespace

from airflow_provider_deltaforge.engine.base.data_drift import DriftWatch
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.sensing.data_drift.detector import DriftDetector, DriftSettings
from airflow_provider_deltaforge.spec.sensing import SchemaSensing
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from tests.sensing.drift_rows import SHOP, rows
from tests.sensing.drift_run import DriftRun
from tests.waiting import wait_for

VALUE = "of a row"
BATCH = rows({"id": VALUE})
DONE = SimpleNamespace(rows=BATCH, origins=None)


def watch(lookup):
    settings = DriftSettings(SchemaSensing(enabled=True), "mysql", False, lambda *_: False)
    return DriftWatch(DriftDetector(settings, lookup))


def test_a_fault_ends_the_search_and_nothing_else(caplog):
    def lookup(*_):
        raise ZeroDivisionError(VALUE)

    looking = watch(lookup)
    assert [looking.examine(BATCH, DONE), looking.examine(BATCH, DONE)] == [[], []]
    (line,) = caplog.messages
    assert "ZeroDivisionError at" in line
    assert VALUE not in line


def test_a_store_that_is_away_leaves_events_out_until_it_is_back(caplog):
    answers = [None, SHOP]

    def lookup(*_):
        found = answers.pop(0)
        if found is None:
            raise RetryableError("away")
        return found

    looking = watch(lookup)
    assert looking.examine(BATCH, DONE) == []
    assert [found.drifted for found in looking.examine(BATCH, DONE)] == [1]
    assert caplog.messages == []


def test_a_record_that_cannot_be_read_is_left_as_it_is(caplog):
    run = DriftRun({"type": "scripted", "config": {"transactions": 10}})
    key = f"{run.name}/script.rows"
    run.store.put(names.DATA_DRIFT, key, b'{"v": 9}')
    run.store.transact([Checkpoints(run.store, run.name, run.name).put("out", {"tx": 0})])
    run.start()
    wait_for("every event", lambda: run.checkpoint() == {"tx": 10})
    run.stop()
    assert len(run.messages()) == 30
    assert run.store.get(names.DATA_DRIFT, key) == b'{"v": 9}'
    assert "data drift is not counted" in caplog.messages
