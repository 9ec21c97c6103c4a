"""Lines of logs: fields in both formats, no secret, and no flood."""

import io
import json
import logging

import pytest

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.telemetry import logs

log = logging.getLogger("airflow_provider_deltaforge.sinks.some")
SECRET = "mysql://cdc:c4n4ry@h/d refused, password=c4n4ry"


def failing(text):
    raise RuntimeError(text)


@pytest.fixture
def lines(monkeypatch):
    """Configures logging, and returns what was printed since."""
    root = logging.getLogger()
    former = (root.handlers[:], root.level)
    stream = io.StringIO()

    def lines(form="text", levels=""):
        monkeypatch.setenv(logs.FORMAT, form)
        monkeypatch.setenv(logs.LEVELS, levels)
        logs.configure({"pipeline": "orders", "tenant": "acme"}, stream=stream)
        return lambda: stream.getvalue().splitlines()

    yield lines
    root.handlers[:], root.level = former
    for name in ("airflow_provider_deltaforge.sinks", "py4j"):
        logging.getLogger(name).setLevel(logging.NOTSET)


def test_text_shows_the_fields_of_process_and_call(lines):
    shown = lines()
    log.warning("batch %d is late", 7, extra={"sink": "kafka", "reason": "it is away", "n": 3})
    [line] = shown()
    assert line.partition(" ")[2] == (
        "WARNING sinks.some: batch 7 is late pipeline=orders tenant=acme sink=kafka "
        'reason="it is away" n=3'
    )


FORGED = "2026-11-23T15:00:00.123Z WARNING sinks.some: forged"
BREAKS = ["\n", "\r\n", "\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"]


@pytest.mark.parametrize("mark", [*BREAKS, "\x1b[2K"])
def test_what_others_wrote_begins_no_line_of_its_own(lines, mark):
    shown = lines()
    name = f"me{mark}{FORGED}"
    log.warning("asked for by %s", name, extra={"sink": name})
    log.warning("asked for by " + name)  # noqa: G003 - as other libraries do
    first, second = shown()
    escaped = mark.encode("unicode_escape").decode()

    assert f"asked for by me{escaped}{FORGED}" in first
    assert f"asked for by me{escaped}{FORGED}" in second
    assert not set(first + second) & set("\x1b\r\n")


def test_places_in_code_stay_on_lines_of_their_own(lines):
    shown = lines()
    log.error("%s failed at:%s", "a\nb", logs.SeveralLines("\n  File one\n  File two\n"))

    first, *places = shown()
    assert first.endswith(r"a\nb failed at:")
    assert places == ["  File one", "  File two", " pipeline=orders tenant=acme"]


def test_json_is_one_object_a_line(lines):
    shown = lines("json")
    try:
        failing("two\nlines")
    except RuntimeError:
        log.exception("it failed", extra={"sink": "kafka", "level": "mine", "half": "\ud83d"})
    [line] = shown()
    found = json.loads(line)
    assert found["time"].endswith("Z")
    assert "two\nlines" in found.pop("traceback")
    del found["time"]
    assert found == {
        "pipeline": "orders",
        "tenant": "acme",
        "sink": "kafka",
        "half": "?",
        "level": "error",
        "logger": "airflow_provider_deltaforge.sinks.some",
        "message": "it failed",
    }


@pytest.mark.parametrize("form", logs.FORMATS)
def test_no_line_holds_a_secret(lines, form):
    shown = lines(form)
    try:
        failing(SECRET)
    except RuntimeError:
        log.exception(SECRET, extra={"reason": SECRET})
    logging.getLogger("urllib3").error(SECRET)
    assert shown()
    assert "c4n4ry" not in "\n".join(shown())


def test_levels_are_those_of_the_environment(lines):
    shown = lines(levels="warning,sinks=debug")
    log.debug("seen")
    logging.getLogger("airflow_provider_deltaforge.engine").info("not seen")
    logging.getLogger("py4j").info("not seen")
    assert [line.partition(": ")[2].split()[0] for line in shown()] == ["seen"]


@pytest.mark.parametrize(("variable", "value"), [(logs.FORMAT, "xml"), (logs.LEVELS, "loud")])
def test_a_variable_that_is_wrong_is_named(monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    with pytest.raises(SpecError, match=variable):
        logs.configure({})


def test_the_same_line_comes_once_a_minute_with_its_count():
    now = [0.0]
    few = logs.RepeatedLines(clock=lambda: now[0])

    def passes(text, **more):
        record = logging.makeLogRecord({"name": "x", "msg": text, **more})
        return few.filter(record) and getattr(record, "repeated", 1)

    assert passes("a") == 1
    assert [passes("a") for _ in range(5)] == [False] * 5
    assert passes("b") == passes("a", sink="other") == 1
    now[0] = 61.0
    assert passes("a") == 6
    assert passes("a") is False
    for number in range(2000):
        passes(f"line {number}")
    assert passes("a") == 1
