"""``deltaforge verify``: its exit codes, and what it prints."""

import json

import pytest
from typer.testing import CliRunner

from airflow_provider_deltaforge.cli.app import app
from airflow_provider_deltaforge.errors import SpecError
from tests.control.bench import DOCUMENT
from tests.control.held_rows import KEYS, hold, key, tamper


def run(*words):
    return CliRunner().invoke(app, ["verify", "orders", *words])


def test_equal_and_different_rows(pipeline, tmp_path):
    path = hold(pipeline, tmp_path)
    done = run()
    assert done.exit_code == 0, done.output
    assert "equal" in done.stdout
    tamper(path)
    done = run("--tables", "script.rows", "--sinks", "files")
    assert done.exit_code == 1
    for shown in ("different", key(KEYS[0]), key(7000)):
        assert shown in done.stdout
    found = json.loads(run("--json", "--examples", "0").stdout)
    assert (found["verdict"], found["differences"]) == ("different", 3)
    assert all(keys == [] for keys in found["sinks"][0]["tables"][0]["examples"].values())


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--tables", "none"), 2),
        (("--wait", "0"), 3),
    ],
)
def test_what_cannot_be_verified(pipeline, tmp_path, words, code):
    hold(pipeline, tmp_path, tx=5)
    assert run(*words).exit_code == code


def test_a_key_steers_no_terminal(pipeline, tmp_path):
    path = hold(pipeline, tmp_path, DOCUMENT)
    with path.open("a") as file:
        image = {"id": "\x1b[2J", "tx": 1, "row": 1}
        place = {"db": "script", "table": "rows"}
        event = {"before": None, "after": image, "source": place, "op": "c"}
        file.write(json.dumps(event, ensure_ascii=False).replace("\\u001b", "\x1b") + "\n")
        file.write(json.dumps(event) + "\n")
    done = run()
    assert done.exit_code == 1
    assert "\x1b[2J" not in done.output


def test_a_repair_needs_a_running_stream(pipeline, tmp_path):
    tamper(hold(pipeline, tmp_path))
    done = run("--repair")
    assert isinstance(done.exception, SpecError)  # Exit code 2, by the program's own handler.
    assert "joins the log of a running stream; start 'orders' first" in str(done.exception)
