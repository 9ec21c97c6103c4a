"""What a webhook gets when a task fails."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.control.starting import start
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.notifications.webhook import DeltaForgeNotifier
from airflow_provider_deltaforge.operators.control import DeltaForgeControlOperator
from airflow_provider_deltaforge.plugins_airflow import listener
from airflow_provider_deltaforge.plugins_airflow.page import DeltaForgePlugin
from tests.control.bench import DOCUMENT, job_of
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.usefixtures("connection")
SECRET = "T0/secret-path"


@pytest.fixture
def posts(monkeypatch):
    """What was posted; ``/teapot`` refuses everything."""
    found = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.append((self.path, dict(self.headers), json.loads(body)))
            self.send_response(418 if self.path == "/teapot" else 200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = server.server_address[1]
    places = {
        "alerts": {
            "host": "127.0.0.1",
            "schema": "http",
            "port": port,
            "login": "me",
            "password": "pw",
            "extra": {"X-Team": "data"},
        },
        "slack": {"host": f"http://127.0.0.1:{port}/services/{SECRET}"},
        "teapot": {"host": f"http://127.0.0.1:{port}/teapot"},
        "away": {"host": f"http://127.0.0.1:9/{SECRET}"},
        "nowhere": {},
    }
    for name, place in places.items():
        value = json.dumps({"conn_type": "http", **place})
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", value)
    yield found
    server.shutdown()
    server.server_close()


def test_the_error_of_a_run_is_its_reason(posts):
    dag = DAG("orders_alerted", schedule=None)
    DeltaForgeNotifier("slack")({"dag": dag, "run_id": "r", "reason": "timed_out"})

    [(_, _, body)] = posts
    assert body["text"] == "DeltaForge: orders_alerted: timed_out"
    assert (body["dag_id"], body["run_id"], body["reason"]) == ("orders_alerted", "r", "timed_out")


@pytest.fixture
def failed(store, backend, dsn):
    """The context of a task whose stream failed."""
    pipelines.apply(store, DOCUMENT)
    start(store, job_of(dsn, "fail:position_lost"), backend, "test")
    wait_until(lambda: status(store, "orders", backend).status == "failed")
    return context_of("orders")


def context_of(pipeline):
    task = DeltaForgeControlOperator(task_id="stream", action="stop", pipeline=pipeline)
    instance = SimpleNamespace(dag_id="d", task_id="stream", run_id="r", try_number=2, task=task)
    words = "position_lost: binlog.000002 is gone: mysql://df:hunter22@db/shop"
    return {"ti": instance, "task": task, "exception": AirflowFailException(words)}


def test_a_webhook_gets_the_failure_and_how_the_pipeline_is(failed, posts):
    DeltaForgeNotifier("alerts")(failed)

    [(path, headers, body)] = posts
    assert (path, headers["X-Team"]) == ("/", "data")
    assert headers["Authorization"].startswith("Basic ")
    assert body["text"].startswith("DeltaForge: pipeline orders of d.stream: position_lost: binlog")
    assert (body["dag_id"], body["run_id"], body["try_number"]) == ("d", "r", 2)
    assert "hunter22" not in json.dumps(body)
    assert body["pipeline"] == {
        "name": "orders",
        "status": "failed",
        "desired": "running",
        "error_class": "position_lost",
        "reason": "binlog.000002 is gone",
        "generation": 1,
        "lag_ms": body["pipeline"]["lag_ms"],
        "dead_letters": 0,
    }


def test_its_text_is_a_template_and_any_task_can_call_it(failed, posts):
    notifier = DeltaForgeNotifier("slack", pipeline="orders", text="{{ ti.dag_id }} is red")
    notifier({"ti": failed["ti"]})

    [(path, _, body)] = posts
    assert (path, body["text"]) == (f"/services/{SECRET}", "d is red")
    assert (body["reason"], body["pipeline"]["name"]) == (None, "orders")


def test_it_says_what_it_can_when_the_pipeline_cannot_be_asked(posts):
    DeltaForgeNotifier("slack")(context_of("none"))
    DeltaForgeNotifier("slack")({})

    assert [body["pipeline"] for _, _, body in posts] == [None, None]
    assert posts[0][2]["text"].startswith("DeltaForge: d.stream: position_lost")


@pytest.mark.parametrize(
    ("conn_id", "why"),
    [("teapot", "did not take it: 418"), ("away", "ConnectError"), ("nowhere", "names no host")],
)
def test_a_webhook_that_does_not_take_it_is_named_without_its_path(failed, posts, conn_id, why):
    with pytest.raises(AirflowException, match=why) as caught:
        DeltaForgeNotifier(conn_id).notify(failed)

    assert SECRET not in str(caught.value)


def test_the_listener_posts_failures_of_our_tasks_alone(failed, posts, monkeypatch):
    from airflow.listeners.listener import get_listener_manager

    assert listener in DeltaForgePlugin.listeners
    manager = get_listener_manager()
    manager.add_listener(listener)
    others = SimpleNamespace(**{**vars(failed["ti"]), "task": object()})

    def fail(instance):
        manager.hook.on_task_instance_failed(
            previous_state=None, task_instance=instance, error=failed["exception"]
        )

    try:
        fail(failed["ti"])
        monkeypatch.setenv("AIRFLOW__DELTAFORGE__FAILURE_WEBHOOK_CONN_ID", "slack")
        fail(others)
        assert posts == []
        fail(failed["ti"])
        assert [body["pipeline"]["error_class"] for _, _, body in posts] == ["position_lost"]
        monkeypatch.setenv("AIRFLOW__DELTAFORGE__FAILURE_WEBHOOK_CONN_ID", "away")
        fail(failed["ti"])  # A webhook that is away fails nothing.
    finally:
        manager.pm.unregister(listener)


def test_the_scheduler_does_not_wait_for_a_webhook(failed, posts, monkeypatch):
    from airflow.serialization.serialized_objects import OperatorSerialization

    task = OperatorSerialization.deserialize_operator(
        OperatorSerialization.serialize_operator(failed["task"])
    )
    returned, waited = threading.Event(), []
    monkeypatch.setattr(
        DeltaForgeNotifier, "notify", lambda *_: waited.append(returned.wait(PATIENCE_S))
    )
    monkeypatch.setenv("AIRFLOW__DELTAFORGE__FAILURE_WEBHOOK_CONN_ID", "slack")
    instance = SimpleNamespace(**{**vars(failed["ti"]), "task": task})
    listener.on_task_instance_failed(None, instance, failed["exception"])
    returned.set()
    wait_until(lambda: waited == [True])
