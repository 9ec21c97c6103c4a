"""What scripts and shells are told: ``--json``, and completion of names."""

import inspect
import json
import os
import socket
import subprocess
import sys
import time

import pytest
import typer
from typer.testing import CliRunner

from airflow_provider_deltaforge.cli import options
from airflow_provider_deltaforge.cli.app import app
from airflow_provider_deltaforge.control import tokens
from tests.control.bench import DOCUMENT

_DOES = {
    "run",
    "serve",
    "fleet",
    "image",
    "precompile",
    "snapshot",
    "pause",
    "resume",
    "stop",
    "delete",
    "reset",
    "driver",
}
"""Commands that do something, and tell people that it is done; their facts are `status`."""
_DOES_BELOW = {"sinks give-up", "sinks adopt", "sinks resume", "token revoke", "schema"}
"""Likewise; `schema` prints JSON anyway."""


def commands(application, above=""):
    """Yield every command with its function."""
    for command in application.registered_commands:
        name = command.name or command.callback.__name__.replace("_", "-")
        yield f"{above}{name}", command.callback
    for group in application.registered_groups:
        yield from commands(group.typer_instance, f"{above}{group.name} ")


def test_every_command_that_prints_facts_prints_them_as_json():
    found = dict(commands(app))
    lacking = {name for name in found if "as_json" not in inspect.signature(found[name]).parameters}
    assert lacking == _DOES | _DOES_BELOW


@pytest.fixture
def document(tmp_path):
    file = tmp_path / "orders.yaml"
    file.write_text(DOCUMENT)
    return str(file)


def answer(*words, code=0):
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


def test_documents_are_printed_as_json(pipeline, document, tmp_path):
    (tmp_path / "wrong.yaml").write_text(DOCUMENT.replace("rows:", "rwos:"))
    good, wrong = answer("validate", document, str(tmp_path / "wrong.yaml"), code=2)
    assert (good["valid"], good["pipeline"], good["sinks"]) == (True, "orders", ["files"])
    assert (wrong["valid"], wrong["pipeline"]) == (False, None)
    assert "spec.source.config.rwos" in wrong["error"]

    assert {"check", "verdict", "message", "data"} == set(answer("preflight", document)[0])
    assert answer("plan", document)["effects"] == answer("apply", document)["effects"]
    made = answer("token", "create", "ci", "--scope", "operate")
    assert tokens.find(pipeline, made["token"]).scope == made["scope"] == "operate"


def completed(words, store):
    environment = {
        **os.environ,
        "_DELTAFORGE_COMPLETE": "complete_bash",
        "COMP_WORDS": f"deltaforge {words}",
        "COMP_CWORD": str(len(words.split())),
        "DELTAFORGE_STORE": store,
    }
    command = "import sys; sys.argv[0] = 'deltaforge'; from airflow_provider_deltaforge.cli.app"
    done = subprocess.run(
        [sys.executable, "-c", f"{command} import main; main()"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_a_shell_completes_the_names_of_pipelines(pipeline, dsn):
    assert completed("status o", dsn) == ["orders"]


def test_a_store_that_is_away_completes_nothing_soon_and_silently(capsys):
    context = typer.Context(typer.main.get_command(app))
    with socket.create_server(("127.0.0.1", 0)) as silent:  # It takes connections, and no more.
        port = silent.getsockname()[1]
        for store in ("sqlite:////nowhere/x.db", "nonsense", f"postgresql://127.0.0.1:{port}/x"):
            context.params = {"store": store}
            began = time.monotonic()
            assert options.pipeline_names(context, "") == []
            assert time.monotonic() - began < 30  # The silent one would be waited for much longer.
    assert capsys.readouterr() == ("", "")


def test_a_shell_is_shown_its_completion():
    command = f"{sys.executable} -c \"import sys; sys.argv = ['deltaforge', '--show-completion']; "
    command += 'from airflow_provider_deltaforge.cli.app import main; main()"'
    done = subprocess.run(
        ["bash", "-c", f"{command}; true"], capture_output=True, text=True, check=False
    )
    assert "_DELTAFORGE_COMPLETE=complete_bash" in done.stdout, done.stderr
