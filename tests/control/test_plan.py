"""What applying would change: every setting by name, no secret, and what follows."""

import yaml

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.control.plan import ABSENT, plan
from airflow_provider_deltaforge.control.starting import start
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.control import Control
from tests.control.bench import DOCUMENT, job_of


def changed(**spec):
    document = yaml.safe_load(DOCUMENT)
    document["spec"].update(spec)
    return yaml.safe_dump(document)


def test_a_new_document_is_all_new_and_starts_nothing(store):
    found = plan(store, DOCUMENT)
    assert found.is_new
    [effect] = found.effects
    assert "nothing starts it" in effect
    assert Control.list_pipelines(store) == []


def test_the_same_document_in_other_words_changes_nothing(store):
    pipelines.apply(store, DOCUMENT)
    found = plan(store, changed())
    assert (found.is_new, found.changes, found.effects) == (False, (), ("nothing changes",))


def test_each_setting_that_differs_is_named(store):
    pipelines.apply(store, DOCUMENT)
    sinks = [
        {"type": "file", "config": {"id": "files", "path": "/elsewhere"}},
        {"type": "memory", "config": {"id": "more"}},
    ]
    found = plan(store, changed(sinks=sinks, batch={"max_events": 7}))
    changes = {change.key: (change.before, change.after) for change in found.changes}
    assert changes == {
        "spec.sinks[files].config.path": ("${OUTPUT}/${source.table}.jsonl", "/elsewhere"),
        "spec.sinks[more].type": (ABSENT, "memory"),
        "spec.sinks[more].config.id": (ABSENT, "more"),
        "spec.batch.max_events": (ABSENT, 7),
    }


def test_what_follows_for_a_driver_and_for_positions_is_shown(store, backend, dsn):
    pipelines.apply(store, DOCUMENT)
    start(store, job_of(dsn), backend, "test")
    [driver] = plan(store, changed(batch={"max_events": 7})).effects
    assert "goes on with the former document" in driver


def test_another_id_of_the_source_is_refused_once_there_are_positions(store):
    pipelines.apply(store, DOCUMENT)
    renamed = changed(source={"type": "scripted", "config": {"id": "other-db"}})
    [effect] = plan(store, renamed).effects
    assert "none yet" in effect

    store.transact([Checkpoints(store, "orders", "shop-db").put("files", {"tx": 1})])
    [effect] = plan(store, renamed).effects
    for part in ("will not start", "'other-db'", "'shop-db'", "`deltaforge reset orders"):
        assert part in effect
    [warning] = pipelines.apply(store, renamed).warnings
    assert warning in effect
    refused, nothing = plan(store, renamed).effects
    assert (refused, nothing) == (effect, "nothing changes")


def test_no_secret_is_shown(store):
    sink = {"type": "redis", "config": {"id": "r", "uri": "redis://:c4n4ry@h", "stream": "s"}}
    pipelines.apply(store, changed(sinks=[sink]))
    hook = {"id": "hook", "url": "https://h", "headers": {"Authorization": "Bearer c4n4ry3"}}
    sink["config"]["uri"] = "redis://:c4n4ry2@h"
    found = plan(store, changed(sinks=[sink, {"type": "http", "config": hook}]))
    assert "spec.sinks[hook].config.headers.Authorization" in {c.key for c in found.changes}
    assert "c4n4ry" not in str(found.as_dict())
