"""``deltaforge run FOLDER``: every document its driver."""

import os
import re
import signal
import subprocess
import sys

import httpx
import pytest

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.storage.location import StoreLocation
from tests.cli.test_cli import FAKE_CLI, ROOT
from tests.control.bench import DOCUMENT, wait_until
from tests.servers.process import free_port
from tests.waiting import PATIENCE_S


@pytest.fixture
def folder(tmp_path):
    below = tmp_path / "documents" / "deeper"
    below.mkdir(parents=True)
    named = {"orders": "shop-db", "users": "users-db", "taken": "shop-db"}
    for name, source in named.items():
        text = DOCUMENT.replace("name: orders", f"name: {name}").replace("shop-db", source)
        (below / f"{name}.yaml").write_text(text)
    (below.parent / "twice.yml").write_text(DOCUMENT)
    (below.parent / "wrong.yaml").write_text("apiVersion: {")
    return below.parent


def running(folder, dsn, *words):
    environment = {**os.environ, "DELTAFORGE_STORE": dsn, "OUTPUT": "/tmp/out", "COLUMNS": "300"}
    return subprocess.Popen(
        [sys.executable, "-c", FAKE_CLI, "run", str(folder), *words],
        cwd=ROOT,
        env={**environment, "FAKE_DRIVER": "run"},
        stderr=subprocess.PIPE,
        text=True,
    )


def test_wrong_documents_of_a_folder_do_not_keep_the_others(folder, dsn, backend, tmp_path):
    port = free_port()
    process = running(folder, dsn, "--api-addr", f"127.0.0.1:{port}")
    store = StoreLocation.from_dsn(dsn).create()
    wait_until(lambda: {"orders", "users"} & set(pipelines.Control.list_pipelines(store)))

    def shown():
        try:
            found = httpx.get(f"http://127.0.0.1:{port}/readyz").json()["pipelines"]
        except httpx.HTTPError:
            return []
        return sorted(pipeline["status"] for pipeline in found)

    wait_until(lambda: shown() == ["running", "running"])
    names = pipelines.Control.list_pipelines(store)
    pipelines.stop(store, names[0], backend)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=PATIENCE_S)

    assert process.returncode == 2, told
    assert re.search(r"wrong\.yaml: spec: line 1", told)
    assert re.search(r"twice\.yml: spec: the pipeline 'orders' is already in .*orders\.yaml", told)
    assert re.search(r"(taken|orders)\.yaml: spec: .*'shop-db' belongs to pipeline", told)
    assert f"{names[1]}: stopped as asked" in told
    assert [status(store, name, backend).status for name in names] == ["stopped", "stopped"]
    store.close()


def test_a_folder_without_documents_is_refused(dsn, tmp_path):
    process = running(tmp_path, dsn)
    _, told = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, "no document" in told) == (2, True)


def test_a_folder_runs_without_spark(tmp_path, dsn, store, backend):
    """Each in a process of its own, which delivers."""
    folder = tmp_path / "documents"
    folder.mkdir()
    for name in ("orders", "users"):
        text = DOCUMENT.replace("name: orders", f"name: {name}").replace("shop-db", name)
        text = text.replace("transactions: 10", "transactions: 10, snapshot: {mode: initial}")
        (folder / f"{name}.yaml").write_text(text.replace("${OUTPUT}/", f"{tmp_path}/{name}-"))
    process = running(folder, dsn, "--local", "--api-addr", "off")
    files = [tmp_path / f"{name}-rows.jsonl" for name in ("orders", "users")]
    wait_until(lambda: all(file.exists() and file.stat().st_size for file in files))
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, told
    assert [status(store, name, backend).status for name in ("orders", "users")] == ["stopped"] * 2
