"""A secret in every setting that can hold one: in no answer, log, metric, command line or store."""

import json
import logging
import os
import re
import signal
import subprocess
import sys
from contextlib import closing
from types import SimpleNamespace

import httpx
import psutil
import pytest

from airflow_provider_deltaforge.api.access import by_token
from airflow_provider_deltaforge.api.app import create_app
from airflow_provider_deltaforge.api.context import ApiContext
from airflow_provider_deltaforge.api.server import serving
from airflow_provider_deltaforge.control import tokens
from airflow_provider_deltaforge.control.fleet import Fleet
from airflow_provider_deltaforge.control.launching.contract import LaunchSpec
from airflow_provider_deltaforge.control.launching.local import LocalBackend, command_without_spark
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.telemetry import logs
from tests.canary import planted
from tests.servers.process import free_port
from tests.waiting import PATIENCE_S, wait_until

PLACES = {"{name}": "sinks-inline", "{db}": "shop", "{table}": "orders"}


class SomeDrivers:
    """Starts two pipelines; the others are kept, and asked by the preflight."""

    def __init__(self, fleet):
        self._fleet = fleet

    def start(self, store, name, *, resume=False):
        if name in {"sinks-inline", "mysql-inline"}:
            self._fleet.start(store, name, resume=resume)


@pytest.fixture
def canary(monkeypatch):
    """Documents, with their variables in this process's environment."""
    documents = planted()
    for name, value in documents.environment.items():
        monkeypatch.setenv(name, value)
    before = dict(os.environ)
    yield documents
    for name in set(os.environ) - set(before):  # Of inline secrets.
        del os.environ[name]


@pytest.fixture
def served(canary, store, dsn, tmp_path):
    """A server whose drivers are real processes, and a client that may do everything."""
    location = StoreLocation.from_dsn(dsn)
    backend = LocalBackend(tmp_path / "jobs", compose=command_without_spark)
    fleet = Fleet(location, backend, LaunchSpec("", 0, "stream_process", dsn))

    def opened():
        return closing(location.open())

    context = ApiContext(opened, backend, SomeDrivers(fleet), by_token(opened))
    headers = {"Authorization": f"Bearer {tokens.create(store, 'ops', 'admin')}"}
    with (
        serving(create_app(context), "127.0.0.1:0") as url,
        httpx.Client(base_url=url, headers=headers, timeout=PATIENCE_S) as rest,
    ):
        yield SimpleNamespace(rest=rest, directory=tmp_path)
    assert fleet.close(5) == []


def test_no_place_was_overlooked(canary):
    """Those that are refused say what to do, and hold no secret themselves."""
    assert len(canary.texts) > 40
    assert len(canary.documents) == 12
    refused = ("avro.schema_registry_url", "http.url", "turso.auth_token", "turso.url")
    assert {name.split()[0] for name in canary.refused} == set(refused)
    for error in canary.refused.values():
        assert re.search(r"spec\.\S+: ", error)
        assert canary.found_in(error) == []


def expected_findings(spec):
    """Nobody listens where brokers and registries should; webhooks and files are not asked."""
    verdicts = {"script": "ok"}  # The scripted source, which computes its log.
    for processor in spec["processors"]:
        if processor["type"] == "mask":  # It names a column that no captured table has.
            verdicts[f"processor {processor['id']}"] = "warn"
    for sink in spec["sinks"]:
        if sink["type"] in {"kafka", "nats", "redis"}:
            verdicts[f"sink {sink['config']['id']}"] = "warn"
        if "encoding" in sink["config"]:
            verdicts[f"sink {sink['config']['id']} encoding"] = "warn"
    return verdicts


def test_a_secret_of_a_served_pipeline_shows_nowhere(canary, served, caplog):
    caplog.set_level(logging.DEBUG)
    rest, told = served.rest, {}
    for name, document in canary.documents.items():
        created = told["POST", name] = rest.post("/pipelines", json=document)
        assert created.status_code == 200, (name, created.text)
        told["validate", name] = rest.post("/validate", json=document)
    for name in ("sinks-inline", "mysql-inline"):
        wait_until(
            lambda name=name: (
                rest.get(f"/pipelines/{name}").json()["ops"]["sink_errors"]
                or rest.get(f"/pipelines/{name}").json()["reason"]
            )
        )
    for name in canary.documents:
        told["preflight", name] = rest.post(f"/pipelines/{name}/preflight")
        told["reload", name] = rest.post(f"/pipelines/{name}/schemas/reload")
        patch = {"spec": {"batch": {"max_events": 7}}}
        told["PATCH", name] = rest.patch(f"/pipelines/{name}", json=patch)
        told["GET", name] = rest.get(f"/pipelines/{name}")
    for path, verbs in rest.get("/openapi.json").json()["paths"].items():
        if "get" in verbs:
            place = re.sub("{.+?}", lambda match: PLACES.get(match[0], "x"), path)
            told["GET", path] = rest.get(place)
    for asked, answer in told.items():
        assert canary.found_in(answer.text) == [], asked
    assert len(told) > 60
    findings = told["preflight", "sinks-variable"].json()["findings"]
    expected = expected_findings(canary.documents["sinks-variable"]["spec"])
    assert {finding["check"]: finding["verdict"] for finding in findings} == expected
    commands = [" ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)]
    assert any("--pipeline sinks-inline" in command for command in commands)
    assert canary.found_in(" ".join(commands)) == []
    assert canary.found_in(caplog.text) == []
    rest.post("/pipelines/sinks-inline/stop")
    assert told["GET", "/pipelines/{name}/log"].json()["lines"] != []
    for file in served.directory.rglob("*"):
        if file.is_file():
            assert canary.found_in(file.read_bytes().decode(errors="replace")) == [], file


def test_a_secret_of_a_run_shows_nowhere(canary, tmp_path):
    document = canary.documents["sinks-inline"]
    (tmp_path / "doc.yaml").write_text(json.dumps(document))
    port = free_port()
    words = ["run", "--local", str(tmp_path / "doc.yaml"), "--no-auth", "--api-addr"]
    process = subprocess.Popen(
        [sys.executable, "-m", "airflow_provider_deltaforge.cli.app", *words, f"127.0.0.1:{port}"],
        cwd=tmp_path,
        env={**os.environ, logs.LEVELS: "debug"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    told = []

    def speaks():
        try:
            answers = [httpx.get(f"http://127.0.0.1:{port}{path}") for path in paths]
        except httpx.HTTPError:
            assert process.poll() is None, process.communicate()
            return False
        told.append("".join(answer.text for answer in answers))
        return answers[0].json()["status"] == "blocked"

    name = document["metadata"]["name"]
    paths = [f"/pipelines/{name}", f"/pipelines/{name}/log", "/metrics", "/readyz", "/pipelines"]
    wait_until(speaks)
    process.send_signal(signal.SIGINT)
    told.append(process.communicate(timeout=PATIENCE_S)[0])
    assert "headers.X-Api-Key: holds a secret" in told[-1]
    assert canary.found_in("".join(told)) == []
    (tmp_path / "doc.yaml").unlink()
    for file in tmp_path.rglob("*"):
        if file.is_file():
            assert canary.found_in(file.read_bytes().decode(errors="replace")) == [], file
