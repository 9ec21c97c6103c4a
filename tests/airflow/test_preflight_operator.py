"""A source that is away at a preflight: waited for like everywhere else, not a failure for good."""

import socket
from datetime import timedelta

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.operators.preflight import DeltaForgePreflightOperator
from airflow_provider_deltaforge.operators.stream import DeltaForgeStreamOperator
from airflow_provider_deltaforge.sources.contract import Finding
from airflow_provider_deltaforge.sources.scripted import ScriptedSource
from tests.airflow.bench import context, deferred
from tests.control.bench import wait_until

pytestmark = pytest.mark.usefixtures("connection")

SOURCES = {
    "mysql": '{id: s, dsn: "mysql://df:x@127.0.0.1:PORT/shop", tables: [shop.orders]}',
    "postgres": '{id: s, dsn: "postgres://df:x@127.0.0.1:PORT/shop", tables: [public.orders], '
    "slot: df, publication: df}",
    "turso": '{id: s, url: "http://127.0.0.1:PORT", tables: [orders]}',
}


@pytest.fixture
def closed_port():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture(params=SOURCES)
def away(request, closed_port, tmp_path):
    """A document whose source does not answer."""
    config = SOURCES[request.param].replace("PORT", str(closed_port))
    file = tmp_path / "away.yaml"
    file.write_text(
        "apiVersion: deltaforge/v1\nkind: Pipeline\nmetadata: {name: orders, tenant: acme}\n"
        f"spec:\n  source: {{type: {request.param}, config: {config}}}\n"
        f'  sinks: [{{type: file, config: {{id: out, path: "{tmp_path}/out.jsonl"}}}}]\n'
    )
    return str(file)


def preflight(document, **more):
    return DeltaForgePreflightOperator(task_id="preflight", document=document, **more)


def test_a_source_that_is_away_is_tried_again_by_airflow(away):
    with pytest.raises(AirflowException, match=r"^retryable: .*127\.0\.0\.1") as caught:
        preflight(away).execute(context())
    assert not isinstance(caught.value, AirflowFailException)


def test_a_source_that_is_away_fails_no_preflight_of_a_stream_that_waits_for_it(
    away, store, backend
):
    stream = DeltaForgeStreamOperator(
        task_id="stream", document=away, poll_interval=timedelta(seconds=0.1)
    )
    deferred(lambda: stream.execute(context()))
    wait_until(lambda: status(store, "orders", backend).alive)

    [first, *_] = preflight(away).execute(context())

    assert (first["verdict"], first["data"]["error_class"]) == ("warn", "retryable")
    assert "its driver runs and waits for it" in first["message"]
    with pytest.raises(AirflowException, match=r"^retryable: "):
        preflight(away, fail_on="warn").execute(context())


def test_what_else_is_wrong_fails_for_good_although_something_is_away_too(document, monkeypatch):
    findings = [
        Finding("connection", "fail", "refused", {"error_class": "retryable"}),
        Finding("log_bin", "fail", "log_bin is off"),
    ]
    monkeypatch.setattr(ScriptedSource, "preflight", lambda _: findings)

    with pytest.raises(AirflowFailException, match="log_bin is off"):
        preflight(document).execute(context())
