"""The incidents that need no server: provoked, seen and mended as the page says."""

import http.server
import re
import sqlite3
import threading
from contextlib import closing, contextmanager

import pytest

from tests.docs import pages
from tests.docs.pages import CHECKOUT, fences
from tests.docs.shell import Shell

PAGE = CHECKOUT / "docs" / "incidents.md"
_DOCUMENT = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {{name: orders, tenant: acme}}
spec:
  source:
    type: turso
    config:
      {{id: shop, url: shop.db, tables: [orders], cdc_mode: triggers, auto_create_triggers: true,
        poll_interval_ms: 100, snapshot: {{mode: initial}}}}
  processors:
    - type: contract
      id: totals
      on_violation: {on_violation}
      tables: [{{table: main.orders, columns: {{total: {{type: number, min: 0}}}}}}]
  journal: {{enabled: {journal}, dlq: {{max_entries: 1, overflow_policy: block}}}}
  sinks:
    - {{type: http, config: {{id: hook, url: "http://127.0.0.1:{port}/"}}}}
"""


class _Hook(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


@contextmanager
def hook(port=0):
    """A webhook, listening while the block runs; yields its port."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), _Hook) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_port
        finally:
            server.shutdown()


def sections():
    """Return the console blocks below each heading of the page."""
    found, parsed = {}, pages.tokens(PAGE)
    for number, token in enumerate(parsed):
        if token.type == "heading_open":
            heading = parsed[number + 1].content
            found[heading] = []
        elif token.type == "fence":
            found[heading] += fences([token], "docs/incidents.md")
    return {head: [b for b in held if b.language == "console"] for head, held in found.items()}


@pytest.fixture
def shell(tmp_path):
    made = Shell(tmp_path)
    yield made
    made.close()


@pytest.mark.long
def test_each_incident_looks_and_is_mended_as_the_page_says(shell):
    def order(statement):
        with closing(sqlite3.connect(shell.folder / "shop.db", timeout=20)) as shop, shop:
            shop.execute(statement)

    def write(**words):
        (shell.folder / "orders.yaml").write_text(_DOCUMENT.format(port=port, **words))

    def mended():
        shell.ask("deltaforge status", ["orders  running  running  …"])

    seen, mend = 0, 1
    page = sections()
    order("CREATE TABLE orders (id INTEGER PRIMARY KEY, total REAL)")
    order("INSERT INTO orders VALUES (1, 10)")
    with hook() as port:
        write(on_violation="block", journal="false")
        shell.start("deltaforge run --local orders.yaml")
        mended()

        order("UPDATE orders SET total = -1")
        refused = page["An event was refused"]
        shell.type(refused[seen])
        write(on_violation="quarantine", journal="true")
        shell.type(refused[mend])
        mended()

        shell.ask("deltaforge dlq count orders", ["1"])
        order("UPDATE orders SET total = -2")
        full = page["The dead-letter queue is full"]
        shell.type(full[seen])
        shell.type(full[mend])
        mended()

        shell.kill()
        gone = page["The driver is gone"]
        shell.type(gone[seen])
        shell.type(gone[mend])
        mended()
        shell.type(page["Two drivers"][seen])

        (shell.folder / ".deltaforge").rename(shell.folder / "away")
        shell.type(page["The state store is away"][seen])
        (shell.folder / "away").rename(shell.folder / ".deltaforge")
        mended()

    order("UPDATE orders SET total = 3")
    shell.type(page["A sink is away"][seen])
    with hook(port):
        mended()
        shell.run("deltaforge stop orders")


def test_every_row_of_the_table_leads_to_its_section():
    linked = {link.anchor for link in pages.links(pages.tokens(PAGE), PAGE) if not link.target}

    assert {pages.slug(head) for head in sections()} - {"incidents"} <= linked


def test_every_alert_has_its_place():
    rules = (CHECKOUT / "docs" / "monitoring" / "alerts.yaml").read_text()
    alerts = set(re.findall(r"- alert: (\w+)", rules))

    assert len(alerts) > 15
    assert alerts == set(re.findall(r"`(DeltaForge[A-Z]\w+)`", PAGE.read_text()))
