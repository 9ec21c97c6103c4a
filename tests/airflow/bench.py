"""What tests of the roof share: a store, a document, a context, and triggers that travel."""

import asyncio
import json
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from airflow.sdk.exceptions import TaskDeferred

from airflow_provider_deltaforge.hooks import deltaforge
from tests.control.bench import DOCUMENT
from tests.waiting import PATIENCE_S


@pytest.fixture
def connection(monkeypatch, tmp_path, dsn, backend):
    """The store as an Airflow connection; ``backend`` ends what the test's drivers leave."""
    extra = {"path": str(tmp_path / "state.db")}
    value = json.dumps({"conn_type": "deltaforge", "extra": extra})
    monkeypatch.setenv("AIRFLOW_CONN_DELTAFORGE_DEFAULT", value)
    monkeypatch.setenv("OUTPUT", str(tmp_path))
    monkeypatch.setattr(deltaforge.DeltaForgeHook, "backend", lambda *_: backend)
    monkeypatch.setenv("AIRFLOW__DELTAFORGE__KILL_GRACE_SECONDS", "0.2")


@pytest.fixture
def store_away(monkeypatch, connection):
    """Put the store out of reach for a block."""

    @contextmanager
    def block():
        place = {"host": "127.0.0.1", "port": 9, "schema": "state", "login": "df"}
        value = json.dumps({"conn_type": "deltaforge", **place})
        with monkeypatch.context() as changed:
            changed.setenv("AIRFLOW_CONN_DELTAFORGE_DEFAULT", value)
            yield

    return block


@pytest.fixture
def document(tmp_path):
    file = tmp_path / "orders.yaml"
    file.write_text(DOCUMENT)
    return str(file)


def context(try_number=1):
    pushed = {}
    instance = SimpleNamespace(
        dag_id="d",
        task_id="t",
        run_id="r",
        map_index=-1,
        try_number=try_number,
        xcom_push=lambda key, value: pushed.update({key: value}),
    )
    return {"ti": instance, "pushed": pushed}


def airflow_says(monkeypatch, *answers):
    """Let Airflow answer with these states, the last for ever, when asked for ``context``'s task.

    An exception is raised: Airflow does not answer.
    """
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    left = list(answers)

    def states(dag_id, map_index=None, task_ids=None, run_ids=None):
        assert (dag_id, map_index, task_ids, run_ids) == ("d", None, ["t"], ["r"])
        state = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(state, Exception):
            raise state
        return {"r": {"t": state}} if state != "deleted" else {}

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(states))


def deferred(call):
    with pytest.raises(TaskDeferred) as caught:
        call()
    return caught.value.trigger


def fired(trigger, seconds=PATIENCE_S):
    async def first():
        return (await anext(trigger.run())).payload

    return asyncio.run(asyncio.wait_for(first(), seconds))


def travelled(trigger):
    """The trigger as the triggerer makes it: from what was serialised."""
    from airflow.sdk.serde import deserialize, serialize

    path, arguments = trigger.serialize()
    assert path == f"{type(trigger).__module__}.{type(trigger).__name__}"
    return type(trigger)(**deserialize(serialize(arguments)))
