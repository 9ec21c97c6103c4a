"""Verifications in the state store: one at a time, results kept, nothing said that is not known."""

import json

import pytest

from airflow_provider_deltaforge.control import verification
from airflow_provider_deltaforge.control.metrics import exposition, observe
from airflow_provider_deltaforge.control.status import statuses
from airflow_provider_deltaforge.control.verification import (
    VerificationRun,
    VerificationRunningError,
)
from airflow_provider_deltaforge.engine.verify.message_rows import VerifiedTable
from airflow_provider_deltaforge.engine.verify.options import VerifyOptions
from airflow_provider_deltaforge.engine.verify.row_states import StateFiles, states
from airflow_provider_deltaforge.engine.verify.sink_rows import HeldRow, open_sink
from airflow_provider_deltaforge.errors import FatalError, RetryableError, SpecError
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.verifications import KEPT, Verifications
from tests.control.bench import DOCUMENT
from tests.control.held_rows import KEYS, SOURCE, hold, key, line, tamper


@pytest.fixture(autouse=True)
def _output(tmp_path, monkeypatch):
    monkeypatch.setenv("OUTPUT", str(tmp_path))


def verified(store, **options):
    run = VerificationRun(store, "orders", VerifyOptions(**options), "test")
    run.begin()
    return run.run()


def test_what_is_held_and_what_is_not(store, tmp_path):
    path = hold(store, tmp_path)
    assert verified(store).verdict == "equal"
    tamper(path)
    found = verified(store)
    [table] = found.sinks[0].tables
    counts = (table.rows, table.missing, table.extra, table.different, table.inconclusive)
    assert (found.verdict, counts) == ("different", (len(KEYS), 1, 1, 1, 0))
    assert table.examples == {
        "missing": [key(KEYS[0])],
        "extra": [key(7000)],
        "different": [key(KEYS[1])],
    }
    assert found.sinks[0].notes == ["1 messages name no row of a table, and were passed over"]
    kept = verification.results(store, "orders")
    assert kept["running"] is None
    assert [result["verdict"] for result in kept["results"]] == ["different", "equal"]
    keys = Verifications(store, "orders").keys()
    assert keys is not None
    assert keys.keys["files"]["script.rows"] == table.examples
    text = exposition(observe(store, statuses(store))).decode()
    labels = 'pipeline="orders",tenant="acme",sink="files"'
    assert f'deltaforge_verify_differences{{{labels},kind="extra"}} 1.0' in text
    assert f"deltaforge_verify_rows{{{labels}}} {len(KEYS)}.0" in text
    assert "deltaforge_verify_last_timestamp_seconds{" in text


def test_examples_and_results_are_limited(store, tmp_path):
    path = hold(store, tmp_path)
    path.write_text("")
    for _ in range(KEPT + 1):
        found = verified(store, examples=2, rechecked=3)
    [table] = found.sinks[0].tables
    assert table.missing == len(KEYS)
    assert len(table.examples["missing"]) == 2
    assert len(verification.results(store, "orders")["results"]) == KEPT


def test_a_sink_that_is_behind_is_not_judged(store, tmp_path):
    hold(store, tmp_path, tx=5)
    found = verified(store, wait_s=0.1)
    assert found.verdict == "incomplete"
    assert "did not reach the log's end" in (found.sinks[0].reason or "")
    assert found.sinks[0].tables == []


def test_a_sink_that_cannot_be_read_back_is_never_equal(store, tmp_path):
    sink = "    - {type: http, config: {id: hook, url: 'https://example.com/in'}}\n"
    hold(store, tmp_path, DOCUMENT + sink)
    found = verified(store)
    assert (found.verdict, found.sinks[0].reason) == ("incomplete", None)
    assert (found.sinks[1].reason or "").startswith("not readable: nothing can be read back")
    assert verified(store, sinks=("files",)).verdict == "equal"
    with pytest.raises(SpecError, match="no sink has the id 'none'"):
        verified(store, sinks=("none",))
    unknown = verified(store, tables=("none.*",))
    assert (unknown.state, unknown.error_class) == ("failed", "spec")


def test_one_at_a_time_and_one_that_was_killed_is_over(store, tmp_path):
    hold(store, tmp_path)
    killed = VerificationRun(store, "orders", VerifyOptions(), "somebody")
    begun = killed.begin()
    with pytest.raises(VerificationRunningError, match="is running by somebody"):
        VerificationRun(store, "orders", VerifyOptions(), "test").begin()
    # What its expiry does, half a minute later.
    assert store.delete(names.VERIFICATIONS, f"orders/alive/{begun.id}")
    assert verified(store).verdict == "equal"
    with pytest.raises(RetryableError, match="another one took its place"):
        killed.run()
    assert [each["by"] for each in verification.results(store, "orders")["results"]] == ["test"]


def test_cancelled_is_kept_as_that(store, tmp_path):
    hold(store, tmp_path)
    run = VerificationRun(store, "orders", VerifyOptions(), "test")
    run.begin()
    run.cancel()
    assert run.run().state == "cancelled"
    assert verification.results(store, "orders")["running"] is None


def test_rows_that_processors_drop_are_not_compared(store, tmp_path):
    processor = (
        "  processors: [{type: filter, id: f, fields: [{path: row, op: eq, value: 0}]}]\n  sinks:"
    )
    path = hold(store, tmp_path, DOCUMENT.replace("  sinks:", processor))
    with path.open("a") as file:
        file.write(line("u", {"id": 7000, "tx": 1, "row": 0}))
    [table] = verified(store).sinks[0].tables
    assert (table.extra, table.missing, table.different) == (1, 0, 0)
    assert table.dropped > 0 < table.rows
    assert table.rows + table.dropped == len(KEYS)


READ = """    - type: http
      config:
        id: hook
        url: https://example.com/in
        verify: {{reader: "{reader}", options: {{tx: {tx}}}}}
"""


def test_a_function_reads_what_consumers_hold(store, tmp_path):
    hold(store, tmp_path, DOCUMENT + READ.format(reader="tests.control.held_rows:read", tx=10))
    store.transact([Checkpoints(store, "orders", "shop-db").put("hook", {"tx": 10})])
    found = verified(store)
    assert (found.verdict, found.sinks[1].tables[0].rows) == ("equal", len(KEYS))
    hold(store, tmp_path, DOCUMENT + READ.format(reader="tests.control.held_rows:read", tx=9))
    [table] = verified(store, sinks=("hook",)).sinks[0].tables
    assert 0 < table.differences == table.missing + table.different <= 3
    flipping = READ.format(reader="tests.control.held_rows:flip", tx=9).replace("tx: 9", "")
    hold(store, tmp_path, DOCUMENT + flipping)
    assert verified(store, sinks=("hook",)).verdict == "equal"
    hold(store, tmp_path, DOCUMENT + READ.format(reader="tests.control.held_rows:none", tx=9))
    unknown = verified(store, sinks=("hook",))
    assert (unknown.state, unknown.error_class) == ("failed", "spec")
    assert "held_rows:none' cannot be loaded" in (unknown.reason or "")
    hold(store, tmp_path, DOCUMENT + READ.format(reader="builtins:int", tx=9))
    failed = verified(store, sinks=("hook",))
    assert "the function failed with TypeError" in (failed.sinks[0].reason or "")


def debezium(event):
    return {"schema": None, "payload": event}


def cloudevents(event):
    return {"specversion": "1.0", "subject": "script.rows", "data": event}


@pytest.mark.parametrize("wrap", [debezium, cloudevents])
def test_envelopes(store, tmp_path, wrap):
    envelope = {debezium: "debezium", cloudevents: "{type: cloudevents, type_prefix: a}"}[wrap]
    text = DOCUMENT.replace("{id: files,", f"{{id: files, envelope: {envelope},")
    path = hold(store, tmp_path, text)
    tamper(path)
    events = path.read_text().splitlines()[:-1]
    path.write_text("".join(json.dumps(wrap(json.loads(event))) + "\n" for event in events))
    [table] = verified(store).sinks[0].tables
    assert (table.missing, table.extra, table.different) == (1, 1, 1)


def test_what_the_log_did_not_repeat_is_not_compared(store, tmp_path):
    path = hold(store, tmp_path)
    last = {number: (tx, row) for tx, row, number in SOURCE.events(1, 10)}
    with path.open("a") as file:
        for number, row in ((KEYS[0], last[KEYS[0]][1]), (KEYS[1], 77)):
            image = {"id": number, "tx": {"_unchanged": True}, "row": row}
            event = json.loads(line("u", image)) | {"unchanged": ["tx"]}
            file.write(json.dumps(event, separators=(",", ":")) + "\n")
    [table] = verified(store).sinks[0].tables
    assert (table.differences, table.examples) == (1, {"different": [key(KEYS[1])]})


def test_a_changed_key_and_a_truncated_table(store, tmp_path):
    """An update lets go of its row's old key; a TRUNCATE of every row before it."""
    path = hold(store, tmp_path)
    lines = path.read_text()
    with path.open("a") as file:
        moved = json.loads(line("u", {"id": 8000, "tx": 1, "row": 0}))
        moved["before"] = {"id": KEYS[0], "tx": 1, "row": 0}
        file.write(json.dumps(moved) + "\n")
    [table] = verified(store).sinks[0].tables
    examples = {"missing": [key(KEYS[0])], "extra": [key(8000)]}
    assert table.examples == examples
    truncated = json.loads(line("t", {})) | {"after": None}
    path.write_text(lines + json.dumps(truncated) + "\n")
    assert verified(store).sinks[0].tables[0].missing == len(KEYS)
    with path.open("a") as file:
        file.write(lines)
    assert verified(store).verdict == "equal"


def test_a_row_written_behind_a_truncate_between_two_looks_is_there(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(line("c", {"id": 7, "tx": 1, "row": 0}))
    [table] = SOURCE.describe()
    sink = load(DOCUMENT).spec.sinks[0]
    held = open_sink(sink, "orders", [VerifiedTable(0, table)], StateFiles(tmp_path), lambda: None)
    held.read({str(path): {0}}, late=False)
    truncated = json.loads(line("t", {})) | {"after": None}
    with path.open("a") as file:
        file.write(json.dumps(truncated) + "\n" + line("c", {"id": 8, "tx": 2, "row": 0}))

    rows = {
        (0, key(number).encode()): HeldRow(0, is_there=number == 7, is_late=False)
        for number in (7, 8)
    }
    held.look(rows, late=False)

    assert [row.is_there for row in rows.values()] == [False, True]


def test_files_that_cannot_be_written_are_named(tmp_path):
    (tmp_path / "full").write_text("no directory")
    files = StateFiles(tmp_path / "full" / "source")
    files.add(states({"id": [1]}, 1))

    with pytest.raises(FatalError, match=r"000000\.arrow cannot be written .* TMPDIR"):
        files.bucket(0)


def test_a_key_that_no_database_has_is_counted_and_not_kept(store, tmp_path):
    path = hold(store, tmp_path)
    with path.open("a") as file:
        file.write(line("c", {"id": "x" * 100_000, "tx": 1, "row": 0}))
        file.write(line("c", {"id": 7000, "tx": 1, "row": 0}))
    [table] = verified(store).sinks[0].tables
    assert (table.extra, table.examples) == (2, {"extra": [key(7000)]})
