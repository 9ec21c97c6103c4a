"""``deltaforge serve``: pipelines made over REST stream rows, whatever happens to the server."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import httpx
import psutil
import pytest

from tests.e2e import shop
from tests.servers.process import free_port
from tests.waiting import PATIENCE_S, wait_for, wait_until

CLI = [sys.executable, "-m", "airflow_provider_deltaforge.cli.app"]
SECRET = "c4n4ry"


class Serve:
    """A ``deltaforge serve`` process, and a client with a token of it."""

    def __init__(self, directory, *words):
        self.directory = directory
        self.words = words
        self.port = free_port()
        self.env = {**os.environ, "COLUMNS": "200", "SHOP_PASSWORD": SECRET}
        self.env.pop("DELTAFORGE_STORE", None)
        self.rest = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=PATIENCE_S)
        self.process = None

    def command(self, *words):
        done = subprocess.run(
            [*CLI, *words],
            cwd=self.directory,
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        return done.returncode, done.stdout.strip(), done.stderr

    def start(self):
        address = ("--api-addr", f"127.0.0.1:{self.port}")
        self.process = subprocess.Popen(
            [*CLI, *self.words, "--local", *address],
            cwd=self.directory,
            env=self.env,
            stderr=(self.directory / "serve.log").open("ab"),
        )
        wait_for("the server", self._answers)
        return self

    def authorize(self):
        _, token, _ = self.command("token", "create", "test", "--scope", "admin")
        self.rest.headers["Authorization"] = f"Bearer {token}"

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)

    def status(self, name):
        return self.rest.get(f"/pipelines/{name}").json()["status"]

    def pids(self):
        """The processes of drivers of this server's store."""
        found = {}
        for process in psutil.process_iter(["cmdline", "cwd"]):
            words = process.info["cmdline"] or []
            ours = str(process.info["cwd"]).startswith(str(self.directory))
            if ours and "driver" in words and "--pipeline" in words and words[0] != "/bin/sh":
                found[words[words.index("--pipeline") + 1]] = process.pid
        return found

    def log(self):
        return (self.directory / "serve.log").read_text()

    def _answers(self):
        assert self.process.poll() is None, self.log()
        try:
            return self.rest.get("/healthz").text == "ok"
        except httpx.HTTPError:
            return False


@pytest.fixture
def serve(tmp_path):
    made = []

    def serve(*words):
        made.append(Serve(tmp_path, *words))
        return made[-1]

    yield serve
    for server in made:
        server.rest.close()
        if server.process is not None and server.process.poll() is None:
            server.process.kill()
            server.process.wait(PATIENCE_S)
        for pid in server.pids().values():
            os.kill(pid, signal.SIGKILL)


def document_of(server, name, output):
    dsn = f"mysql://served:${{SHOP_PASSWORD}}@127.0.0.1:{server.port}/{name}"
    return {
        "apiVersion": "deltaforge/v1",
        "kind": "Pipeline",
        "metadata": {"name": name, "tenant": "acme"},
        "spec": {
            "source": {
                "type": "mysql",
                "config": {
                    "id": name,
                    "dsn": dsn,
                    "tables": [f"{name}.orders"],
                    "snapshot": {"mode": "initial"},
                },
            },
            "sinks": [{"type": "file", "config": {"id": "files", "path": str(output)}}],
        },
    }


def test_a_pipeline_outlives_its_server_and_goes_on_with_the_next(serve, tmp_path, mysql_server):
    name, output = "served", tmp_path / "orders.jsonl"
    shop.create(mysql_server, name, orders=20)
    with shop.connect(mysql_server) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE USER IF NOT EXISTS served@'%%' IDENTIFIED BY %s", [SECRET])
        cursor.execute("GRANT ALL ON *.* TO served@'%'")
    server = serve("serve")
    server.authorize()
    server.start()
    answer = server.rest.post("/pipelines", json=document_of(mysql_server, name, output))
    assert answer.status_code == 200, answer.text

    def insert(customer):
        with shop.connect(mysql_server, name) as connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO orders (customer, status) VALUES (%s, 'new')", [customer])
            connection.commit()

    def delivered():
        lines = output.read_bytes().splitlines() if output.exists() else []
        return {json.loads(line)["after"]["customer"] for line in lines}

    wait_until(lambda: server.status(name) == "running")
    wait_until(lambda: delivered() == set(range(20)))
    assert len(server.rest.get(f"/pipelines/{name}/schemas/{name}/orders").json()["columns"]) == 6
    first = server.pids()[name]

    server.end(signal.SIGKILL)
    insert(101)
    wait_until(lambda: 101 in delivered())
    server.start()
    wait_until(lambda: server.status(name) == "running")
    assert server.pids() == {name: first}, "the driver was not adopted"

    assert server.end() == 0
    assert server.pids() == {}
    insert(102)
    server.start()
    wait_until(lambda: 102 in delivered())
    os.kill(server.pids()[name], signal.SIGKILL)  # The server watches it, and starts it again.
    insert(103)
    wait_until(lambda: 103 in delivered())
    assert server.rest.get(f"/pipelines/{name}").json()["ops"]["restarts"] == 1

    assert server.rest.delete(f"/pipelines/{name}").status_code == 204
    assert server.pids() == {}
    assert delivered() == {*range(20), 101, 102, 103}
    seen = server.log() + "".join(log.read_text() for log in tmp_path.rglob("driver.log"))
    assert SECRET not in seen


FOLDER_DOCUMENT = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {{name: {name}, tenant: acme}}
spec:
  source:
    type: scripted
    config: {{id: {name}, transactions: 3}}
  sinks:
    - type: file
      config: {{id: files, path: "{directory}/{name}.jsonl", {more}}}
"""


def test_a_folder_is_served_but_for_a_document_that_is_wrong(serve, tmp_path):
    folder = tmp_path / "pipelines"
    folder.mkdir()
    for name, more in {"good": "", "wrong": "pth: x", "other": ""}.items():
        text = FOLDER_DOCUMENT.format(name=name, directory=tmp_path, more=more)
        (folder / f"{name}.yaml").write_text(text)
    (folder / "notes.txt").write_text("no document")
    metrics = f"127.0.0.1:{free_port()}"
    store = ("--storage-backend", "sqlite", "--storage-path", str(tmp_path / "data" / "df.db"))
    server = serve("--config", str(folder), *store, "--metrics-addr", metrics)
    server.env["DELTAFORGE_STORE"] = f"sqlite:///{tmp_path}/data/df.db"
    server.authorize()
    del server.env["DELTAFORGE_STORE"]
    server.start()
    wait_until(lambda: server.status("good") == server.status("other") == "running")
    assert httpx.get(f"http://{metrics}/metrics").status_code == 401
    text = httpx.get(f"http://{metrics}/metrics", headers=server.rest.headers).text
    assert 'deltaforge_pipeline_info{pipeline="good",tenant="acme"} 1.0' in text
    assert httpx.get(f"http://{metrics}/pipelines").status_code == 404
    assert server.rest.get("/pipelines/wrong").status_code == 404
    assert re.search(r"wrong\.yaml is not started: .*pth", server.log(), re.DOTALL)
    server.rest.post("/pipelines/other/stop")
    assert server.end(signal.SIGINT) == 0
    assert server.pids() == {}

    code, _, told = serve(str(folder / "wrong.yaml")).command(
        *("serve", str(folder / "wrong.yaml"), "--local", "--api-addr", "127.0.0.1:0")
    )
    assert (code, "pth" in told) == (2, True)


def test_what_one_stopped_is_not_started_by_the_next_server(serve, tmp_path):
    document = tmp_path / "one.yaml"
    document.write_text(FOLDER_DOCUMENT.format(name="one", directory=tmp_path, more=""))
    server = serve("serve", str(document))
    server.authorize()
    server.start()
    wait_until(lambda: server.status("one") == "running")
    server.rest.post("/pipelines/one/stop")
    server.end()

    for words in ((), (str(document),)):
        server.words = ("serve", *words)
        server.start()
        time.sleep(2)
        assert server.status("one") == "stopped"
        server.end()
    server.start()
    assert server.rest.post("/pipelines/one/resume").status_code == 200
    wait_until(lambda: server.status("one") == "running")


@pytest.mark.parametrize(
    "words",
    [
        ("--config", ".", "--storage-backend", "memory"),
        ("--config", ".", "--storage-backend", "postgres"),
        ("--config", ".", "--storage-backend", "sqlite", "--storage-dsn", "postgres://h/d"),
        ("--config", ".", "status"),
    ],
)
def test_what_does_not_fit_together_is_refused(serve, words):
    code, _, told = serve().command(*words)
    assert (code, words[2] in told or "--config" in told) == (2, True)


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0"])
def test_the_api_is_open_without_a_token_on_this_machine_only(serve, address):
    code, _, told = serve().command("serve", "--local", "--no-auth", "--api-addr", address)
    assert (code, "--no-auth" in told) == (2, True)


def test_a_token_is_shown_once_and_revoked(serve):
    server = serve()
    code, token, told = server.command("token", "create", "ops", "--scope", "operate")
    assert (code, "not shown again" in told) == (0, True)
    code, shown, _ = server.command("token", "list", "--json")
    assert [(each["name"], each["scope"]) for each in json.loads(shown)] == [("ops", "operate")]
    assert token not in shown
    assert server.command("token", "create", "ops")[0] == 2
    assert server.command("token", "create", "x", "--scope", "root")[0] == 2
    assert server.command("token", "revoke", "ops")[0] == 0
    assert server.command("token", "revoke", "ops")[0] == 2
