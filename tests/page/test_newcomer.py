"""A newcomer's way by the page alone: create, see rows, break a sink, see why, mend, replay."""

import os
import re
import signal
import sqlite3
import subprocess
import sys

import pytest
import redis as client

from tests.page.browser import browser, opened  # noqa: F401 - a fixture
from tests.servers import redis
from tests.servers.process import free_port
from tests.waiting import PATIENCE_S, wait_until

DOCUMENT = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {{name: orders, tenant: acme, labels: {{team: shop}}}}
spec:
  source:
    type: turso
    config:
      id: shop
      url: {url}
      tables: [orders]
      cdc_mode: triggers
      auto_create_triggers: true
      snapshot: {{mode: initial}}
  sinks:
    - type: redis
      config: {{id: cache, uri: "redis://127.0.0.1:{port}/0", stream: "orders:${{after.region}}"}}
  journal: {{enabled: true}}
"""


class Shop:
    """A SQLite file with orders."""

    def __init__(self, path):
        self.path = path
        self._run("CREATE TABLE orders (id INTEGER PRIMARY KEY, region TEXT, amount REAL)")
        self.order("north", 40)

    def order(self, region, count=1):
        rows = [(region, number) for number in range(count)]
        self._run("INSERT INTO orders (region, amount) VALUES (?, ?)", rows)

    def _run(self, statement, rows=((),)):
        connection = sqlite3.connect(self.path, timeout=PATIENCE_S)
        with connection:
            connection.executemany(statement, rows)
        connection.close()


@pytest.fixture
def cache(tmp_path):
    server = redis.start(tmp_path / "redis")
    yield server
    server.stop()


@pytest.fixture
def url(tmp_path):
    """The address of ``deltaforge serve``, on an empty store."""
    words = ["--local", "--no-auth", "--store", f"sqlite:///{tmp_path}/state.db"]
    address = ["--api-addr", f"127.0.0.1:{free_port()}"]
    with (tmp_path / "serve.log").open("wb") as log:
        server = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "airflow_provider_deltaforge.cli.app",
                "serve",
                *words,
                *address,
            ],
            cwd=tmp_path,
            stderr=log,
            env={**os.environ, "COLUMNS": "200"},
        )

    def said():
        assert server.poll() is None
        return re.search(r"are at (\S+);", (tmp_path / "serve.log").read_text())

    wait_until(said)
    yield said()[1]
    server.send_signal(signal.SIGTERM)
    server.wait(PATIENCE_S)


@pytest.mark.long
def test_from_nothing_to_a_replay(tmp_path, cache, url, browser):  # noqa: F811
    shop = Shop(tmp_path / "shop.db")
    connection = client.Redis(port=cache.port)

    def entries(region):
        return connection.xlen(f"orders:{region}")

    with opened(browser, url) as page:
        page.goto("/")
        page.get_by_text("No pipelines yet").wait_for()
        page.get_by_role("button", name="New pipeline…").click()
        page.get_by_label("Document").fill(DOCUMENT.format(url=shop.path, port=cache.port))
        page.get_by_role("button", name="Create and start").click()

        # Rows flow: those that were there, and those that come.
        page.get_by_role("row", name="main.orders followed 40").wait_for()
        shop.order("south", 3)
        page.get_by_role("row", name="main.orders followed 40 3").wait_for()
        assert (entries("north"), entries("south")) == (40, 3)

        # The sink's server ends: why stands on the page, and it goes on by itself.
        cache.stop()
        shop.order("south", 2)
        page.get_by_text(re.compile(r"retryable: .*127\.0\.0\.1")).wait_for()
        page.get_by_text("Nothing is lost: the pipeline waits and goes on by itself.").wait_for()
        page.get_by_role("link", name="All pipelines").click()
        page.get_by_text("1 pipeline, 1 needs attention").wait_for()
        cache.launch()
        page.get_by_text("1 pipeline, all well").wait_for()
        assert entries("south") == 5

        # Events that nobody can take are set aside, looked at, and sent again.
        connection.set("orders:west", "somebody else's")
        shop.order("west", 2)
        page.get_by_role("link", name="orders", exact=True).click()
        page.get_by_role("tab", name="Dead letters (2)").click()
        page.get_by_role("button", name="Look").first.click()
        page.get_by_text('"region": "west"').wait_for()
        assert page.get_by_text("this key holds something else").count() >= 1
        connection.delete("orders:west")
        page.get_by_role("button", name="Replay all…").click()
        page.get_by_role("button", name="Replay", exact=True).click()
        page.get_by_text("2 sent").wait_for()
        page.get_by_text("Nothing is set aside.").wait_for()
        assert entries("west") == 2
