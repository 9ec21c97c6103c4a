"""Scripts on change events; one interpreter serves all tests of a module that only try code."""

import json

import pytest

from airflow_provider_deltaforge.processors.javascript.settings import JavaScript
from airflow_provider_deltaforge.testing.changes import change, change_rows


def opened(inline, **limits):
    """Return a worker of a pipeline named orders-cdc; limits are wide unless they are given."""
    wide = {"cpu_ms": 20_000, "timeout_ms": 40_000, **limits}
    script = JavaScript(id="js", inline=inline, limits=wide)
    return script.within("orders-cdc", "acme", "mysql").open()


@pytest.fixture
def start():
    """Return a function that opens a worker, and close them all in the end."""
    workers = []

    def start_one(inline, **limits):
        workers.append(opened(inline, **limits))
        return workers[-1]

    yield start_one
    for worker in workers:
        worker.close()


@pytest.fixture(scope="module")
def workbench():
    worker = opened("(event) => new Function('event', event.before.code)(event)")
    yield worker
    worker.close()


@pytest.fixture
def tried(workbench):
    """Return a function that runs the body of a function of an event, whose before holds it."""

    def run(code, **changed):
        row = change(before=json.dumps({"code": code}, separators=(",", ":")).encode(), **changed)
        return workbench.process(change_rows([row]))

    return run


@pytest.fixture
def shown(tried):
    """Return a function that evaluates an expression over an event, and returns its value."""

    def value_of(expression, **changed):
        done = tried(f"event.after = {{ seen: {expression} }}", **changed)
        assert not done.rejections, done.rejections
        return json.loads(done.rows["after"][0].as_py()).get("seen", "(undefined)")

    return value_of
