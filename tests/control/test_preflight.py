"""A document's preflight: what the sinks say before anything is written to them."""

import sqlite3
import sys
from contextlib import closing

import pytest

from airflow_provider_deltaforge.control.preflight import preflight
from airflow_provider_deltaforge.spec.load import load
from tests.servers.process import HOST, free_port
from tests.sinks import nats_reader

DOCUMENT = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {{name: asked, tenant: tests}}
spec:
  source: {{type: scripted, config: {{id: asked-source}}}}
  sinks: [{sinks}]
"""


def sink(kind, **config):
    told = ", ".join(f'{name}: "{value}"' for name, value in {"id": kind, **config}.items())
    return f"{{type: {kind}, config: {{{told}}}}}"


def found(*sinks):
    findings = preflight(load(DOCUMENT.format(sinks=", ".join(sinks))))
    return {one.check: one for one in findings if one.check.startswith("sink ")}


@pytest.fixture
def asked(nats_server):
    nats_reader.add_stream(nats_server.dsn(), "ASKED", "asked.>")
    yield sink("nats", url=nats_server.dsn(), subject="asked.rows", stream="ASKED")
    nats_reader.remove_stream(nats_server.dsn(), "ASKED")


def test_sinks_that_take_us_say_so_and_files_are_not_asked(asked, redis_server, tmp_path):
    findings = found(
        asked,
        sink("redis", uri=redis_server.dsn(), stream="rows"),
        sink("file", path=f"{tmp_path}/out.jsonl"),
    )
    assert {check: one.verdict for check, one in findings.items()} == {
        "sink nats": "ok",
        "sink redis": "ok",
    }


def test_a_stream_that_is_missing_fails_and_so_does_a_wrong_password(nats_server, redis_server):
    wrong = redis_server.dsn().replace("redis://", "redis://nobody:planted-5e1c@")
    findings = found(
        sink("nats", url=nats_server.dsn(), subject="lost.rows", stream="LOST"),
        sink("redis", uri=wrong, stream="rows"),
    )
    assert {one.verdict for one in findings.values()} == {"fail"}
    assert "nats stream add LOST" in findings["sink nats"].message
    assert findings["sink redis"].data["error_class"] == "access"
    assert "planted-5e1c" not in str(findings)


def test_a_sink_that_does_not_answer_is_a_warning():
    findings = found(
        sink("nats", url=f"nats://{HOST}:{free_port()}", subject="rows", stream="ROWS"),
        sink("redis", uri=f"redis://{HOST}:{free_port()}", stream="rows"),
        sink("kafka", brokers=f"{HOST}:{free_port()}", topic="rows", send_timeout_secs=1),
    )
    assert [one.verdict for one in findings.values()] == ["warn"] * 3
    assert all("check that" in one.message for one in findings.values())


def test_a_driver_that_is_not_installed_here_is_a_warning(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis", None)
    (finding,) = found(sink("redis", uri=f"redis://{HOST}:{free_port()}", stream="rows")).values()
    assert finding.verdict == "warn"
    assert "[redis]" in finding.message


MASKED = """
metadata: {{name: masked, tenant: tests}}
spec:
  source: {{type: turso, config: {{url: "{path}", tables: [people]}}}}
  processors:
    - type: mask
      rules:
        - {{columns: [main.people.name, main.peple.name, main.people.doc.phone], action: redact}}
        - {{columns: ["*.*.E\\\\.MAIL", "*.*.ssn", "main.*.iban*"], action: redact}}
  sinks: [{{type: stdout, config: {{id: out}}}}]
"""


def test_a_pattern_of_columns_that_fits_none_is_a_warning(tmp_path):
    path = tmp_path / "people.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute('CREATE TABLE people (id INTEGER PRIMARY KEY, name, doc, "e.mail", iban2)')
    findings = preflight(load(MASKED.format(path=path)))
    (found,) = [one for one in findings if one.check == "processor mask"]
    assert found.verdict == "warn"
    assert found.data["patterns"] == ["main.peple.name", "*.*.ssn"]
    assert "main.peple.name" in found.message


def test_without_a_server_columns_are_not_judged(tmp_path):
    findings = preflight(load(MASKED.format(path=tmp_path / "nowhere.db")))
    assert not [one for one in findings if one.check == "processor mask"]


def test_a_library_that_schema_sensing_lacks_here_is_a_warning(monkeypatch):
    document = DOCUMENT.format(sinks=sink("memory")) + "  schema_sensing: {enabled: true}\n"

    def verdicts():
        findings = preflight(load(document))
        return [one.verdict for one in findings if one.check == "schema sensing"]

    assert verdicts() == ["ok"]
    monkeypatch.setitem(sys.modules, "datasketches", None)
    assert verdicts() == ["warn"]
