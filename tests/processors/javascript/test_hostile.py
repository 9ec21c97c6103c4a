"""Scripts that throw, loop, take all memory or change every prototype: the next batch runs."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

import psutil
import pytest

from airflow_provider_deltaforge.errors import RetryableError, SpecError
from airflow_provider_deltaforge.processors.javascript.interpreter import _cpu_seconds
from airflow_provider_deltaforge.processors.javascript.settings import JavaScript, PipelineInfo
from airflow_provider_deltaforge.processors.javascript.worker import _ENOUGH_ROWS, ScriptWorker
from airflow_provider_deltaforge.testing.changes import change, change_rows
from tests.processors.javascript.conftest import opened
from tests.waiting import PATIENCE_S, wait_until

LIMITS = {"cpu_ms": 150, "timeout_ms": 20_000, "mem_mb": 64}
WIDE = {"cpu_ms": 20_000, "timeout_ms": 20_000, "mem_mb": 64}
SLOW = "used more than cpu_ms = 150 ms"
LARGE = "used more than mem_mb = 64 MiB"


def batch(count, *, bad=()):
    return change_rows(
        [
            change(after=b'{"id":%d,"bad":%s}' % (n, b"true" if n in bad else b"false"))
            for n in range(count)
        ]
    )


@pytest.mark.parametrize(
    ("code", "limits", "reason"),
    [
        ("while (1) {}", LIMITS, SLOW),
        ("const t = new Uint8Array(3e7); while (1) t.fill(3)", LIMITS, SLOW),
        ("Promise.resolve().then(() => { while (1) {} })", LIMITS, SLOW),
        ("const q = []; while (1) q.push(new Array(1000).fill(1))", WIDE, LARGE),
        ("const a = []; a.length = 2 ** 32 - 1; a.fill(1)", LIMITS, None),
        ("e.after.x = 'x'.repeat(2e8)", WIDE, LARGE),
    ],
)
def test_a_call_that_uses_too_much_costs_its_event_alone(start, code, limits, reason):
    worker = start(f"(e) => {{ if (e.after.bad) {{ {code} }} e.tags = ['seen'] }}", **limits)
    rows = batch(6, bad=[2])

    done = worker.process(rows)

    assert [one.event_row for one in done.rejections] == [2]
    assert reason is None or reason in done.rejections[0].reason
    assert done.rows["tags"].to_pylist() == [["seen"]] * 5
    assert done.origins.to_pylist() == [0, 1, 3, 4, 5]
    assert sum(done.counts.values()) == 2
    assert worker.process(batch(3)).rows.num_rows == 3


def test_waiting_counts_as_time(start):
    worker = start("let gone = 0; (e) => { gone++; e.tags = [String(gone)] }", timeout_ms=2000)
    assert worker.process(batch(1)).rows["tags"].to_pylist() == [["1"]]
    pid = worker._interpreter._process.pid
    os.kill(pid, signal.SIGSTOP)

    done = worker.process(batch(1))

    # The first try ran out of time; the event alone went to a new interpreter, without state.
    assert done.rows["tags"].to_pylist() == [["1"]]
    assert done.counts == {"timeouts": 1}
    assert not psutil.pid_exists(pid)


def test_a_script_that_never_ends_does_not_hold_a_batch_for_ever():
    script = JavaScript(id="js", inline="(e) => { while (1) {} }", limits={**LIMITS, "cpu_ms": 20})
    worker = ScriptWorker(script, PipelineInfo(), most_killed=3)

    done = worker.process(batch(5))
    worker.close()

    assert len(done.rejections) == 5
    assert done.rejections[-1].reason.startswith("not run: the script used more than its limits")
    assert done.counts == {"timeouts": 4}


def test_limits_that_a_whole_batch_exceeds_make_the_batches_smaller(start, caplog):
    worker = start(
        "function processBatch(events) { while (events.length > 16) {} return events }",
        timeout_ms=1000,
    )
    rows = batch(32)

    first = worker.process(rows)

    assert not first.rejections
    assert first.rows.equals(rows)
    assert "32 events at once are too many for its limits" in caplog.text
    assert "it gets at most 16 from now on" in caplog.text


def test_a_throwing_event_is_named_by_line_and_leaves_its_neighbours_as_they_were(start):
    worker = start(
        "let calls = 0;\nfunction processBatch(events) {\n  calls++;\n  for (const e of events) {\n"
        "    e.after.n = (e.after.n || 0) + 1;\n    e.tags = [String(calls)];\n"
        "    if (e.after.bad) throw new RangeError(`secret ${e.after.id}`);\n  }\n}"
    )

    done = worker.process(batch(3, bad=[1]))

    assert [one.reason for one in done.rejections] == [
        "the script threw RangeError at line 7, column 28"
    ]
    assert done.rows["after"].to_pylist() == [
        b'{"id":0,"bad":false,"n":1}',
        b'{"id":2,"bad":false,"n":1}',
    ]
    # The state of the failed call is gone with its interpreter.
    assert done.rows["tags"].to_pylist() == [["1"], ["3"]]


POLLUTION = """
for (const type of [Array, String, Map, RegExp, Function, Object, Number, BigInt]) {
  for (const name of Object.getOwnPropertyNames(type.prototype)) {
    if (name !== 'constructor' && name !== '__proto__') {
      try { type.prototype[name] = () => { throw 'polluted' } } catch (e) {}
    }
  }
}
for (const name of ['before', 'after', 'whole', 'get', 'count', 'toJSON', '0', '1', 'rows']) {
  const trap = { get() { throw 'polluted' }, set(value) { throw 'polluted' } };
  if (name !== 'toJSON') Object.defineProperty(Object.prototype, name, trap);
}
Array.prototype[Symbol.iterator] = undefined;
String.prototype[Symbol.iterator] = undefined;
JSON.stringify = JSON.parse = Reflect.get = Reflect.ownKeys = Object.keys = undefined;
Proxy = Map = Int32Array = Reflect = undefined;
function processBatch(events) {
  for (let i = 0; i < events.length; i++) {
    events[i].after.id++; events[i].op = 'u'; events[i].route({ key: 'k' });
    delete events[i].tags;
  }
  return events;
}
"""


def test_changed_prototypes_reach_nothing_of_ours(start):
    worker = start(POLLUTION)

    done = worker.process(batch(3))

    assert not done.rejections, done.rejections
    assert done.rows["op"].to_pylist() == ["u"] * 3
    assert done.rows["after"].to_pylist()[2] == b'{"id":3,"bad":false}'
    assert done.rows["routing"].to_pylist()[0]["key"] == "k"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("event.after = () => 1", "after must be an object or null, not a function"),
        ("event.after = Symbol('x')", "after must be an object or null, not a symbol"),
        ("event.after.toJSON = () => [1]", "after must be an object or null"),
        ("const a = [event]; a.length = 4e9; return a", "returned too many events"),
        ("Object.defineProperty(event, 'after', { get() { throw new RangeError('secret') } })",
         "RangeError"),
        ("return new Proxy([], { get() { throw 'secret' } })", "the script threw a string"),
        ("return { get event_id() { throw new Error('secret') } }", "Error"),
        ("class Leaky extends Error { get name() { return 'a secret' } }; throw new Leaky()",
         "the script threw an error"),
        ("event.after = {}; event.after.me = event.after", ""),
    ],
)  # fmt: skip
def test_garbage_costs_its_event_and_shows_no_value(tried, code, reason):
    done = tried(code)

    assert len(done.rejections) == 1
    assert reason in done.rejections[0].reason
    assert "secret" not in done.rejections[0].reason
    assert tried("event.op = 'u'").rows["op"].to_pylist() == ["u"]


def test_proxies_of_events_stand_for_them(tried):
    done = tried("return new Proxy(event, { get: (t, k) => k === 'op' ? 'u' : t[k] })")

    assert (done.origins, done.made) == (None, None)
    assert done.rows["op"].to_pylist() == ["u"]


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("function processBatch(events) {\n  return events.map(e => {\n}", "line 3, column 1"),
        ("let x = ;", "does not compile: line 1, column 9: SyntaxError: Unexpected token ';'"),
        ("const a = 1;\na.b.c();", "throws when it is loaded: line 2, column 5: TypeError"),
        ("1 + 1", "it is no processor: define `function processBatch(events) {"),
        ("while (1) {}", "takes longer than twice limits.timeout_ms"),
    ],
)
def test_what_cannot_be_a_processor_is_refused_at_start(script, text):
    limits = {"timeout_ms": 10} if "longer" in text else {}
    with pytest.raises(SpecError, match="processor js, key inline: ") as caught:
        opened(script, **limits)

    assert text in str(caught.value)


@pytest.mark.parametrize(
    "script",
    [
        "export function processBatch(events) { return [] }",
        "const processBatch = (events) => []",
        "function (event) { return [] }",
        "(event) => []",
        "async function unused() {}\n(event) => { return [] } // the end",
    ],
)
def test_every_form_of_a_processor(start, script):
    assert start(script).process(batch(1)).rows.num_rows == 0


def test_a_script_that_has_no_room_is_refused_at_start():
    with pytest.raises(SpecError, match=r"it needs more than limits\.mem_mb = 16"):
        opened("const q = []; while (1) q.push(new Array(1000).fill(1)); e => e", mem_mb=16)


LEFT_OPEN = """
import os, sys
from airflow_provider_deltaforge.processors.javascript.settings import JavaScript, PipelineInfo
from airflow_provider_deltaforge.processors.javascript.worker import _ENOUGH_ROWS, ScriptWorker
worker = JavaScript(id="js", inline="e => e").open()
print(worker._interpreter._process.pid, "py_mini_racer" in sys.modules, flush=True)
"""


def test_an_interpreter_that_nobody_closes_ends_with_its_process(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", LEFT_OPEN],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )

    pid, imported = done.stdout.split()
    assert imported == "False"
    with suppress(psutil.NoSuchProcess):
        psutil.Process(int(pid)).wait(PATIENCE_S)


def test_closing_twice_ends_the_process():
    worker = opened("e => e")
    process = worker._interpreter._process

    worker.close()
    worker.close()

    assert process.returncode is not None


def test_what_a_script_is_given_at_once_does_not_grow_for_ever(start):
    worker = start("e => e")
    rows = batch(1)

    for _ in range(40):
        worker.process(rows)

    assert worker._most_rows < 2 * _ENOUGH_ROWS


def test_checking_a_document_loads_the_script():
    good = JavaScript(id="js", inline="e => e")
    good.check()

    with pytest.raises(SpecError, match="it does not compile"):
        good.model_copy(update={"inline": "e =>"}).check()


def test_closing_ends_a_call_that_runs():
    worker = opened("(e) => { while (1) {} }")
    outcome = []

    def work():
        try:
            worker.process(batch(1))
        except RetryableError as error:
            outcome.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    wait_until(lambda: _cpu_seconds(worker._interpreter._process.pid) > 0.5)
    worker.close()
    thread.join(60)

    assert outcome == ["processor js was closed"]
