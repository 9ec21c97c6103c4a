"""What the README tells people to type exists and does what is said."""

import ast
import re
import shlex
import subprocess
import sys

import pytest
import typer

from airflow_provider_deltaforge.cli.app import app
from airflow_provider_deltaforge.spec.load import load
from tests.architecture.probe import CHECKOUT

README = (CHECKOUT / "README.md").read_text()
CLI_PAGE = (CHECKOUT / "docs" / "reference" / "cli.md").read_text()
COMMANDS = {
    name: command
    for name, command in typer.main.get_command(app).commands.items()
    if not command.hidden
}


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


LINES = [
    line.removeprefix("$ ")
    for block in blocks("console")
    for line in block.splitlines()
    if line.startswith("$ ")
]


def options(command):
    """Return the options that help shows; what is hidden is for processes of ours."""
    shown = [each for each in command.params if not getattr(each, "hidden", False)]
    return {name for parameter in shown for name in parameter.opts if name[0] == "-"}


def test_it_is_short():
    assert len(README.splitlines()) <= 200


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("deltaforge")])
def test_every_deltaforge_command_exists_with_its_options(line):
    words = shlex.split(line, comments=True)[1:]
    command = COMMANDS[words[0]]

    assert {word for word in words[1:] if word.startswith("-")} <= options(command)
    for word in words[1:]:
        if word.endswith(".yaml"):
            assert (CHECKOUT / word).is_file()


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("./dev.sh")])
def test_every_dev_verb_exists(line):
    listed = subprocess.check_output(["./dev.sh", "help"], cwd=CHECKOUT, text=True)
    verb = shlex.split(line, comments=True)[1]

    assert re.search(rf"^  {verb} ", listed, re.MULTILINE)


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("pip install")])
def test_every_extra_exists(line):
    extras = re.search(r"airflow-provider-deltaforge\[([a-z,]+)\]", line).group(1).split(",")
    project = (CHECKOUT / "pyproject.toml").read_text()

    for extra in extras:
        assert re.search(rf"^{extra} = \[", project, re.MULTILINE)


def test_no_other_command_line_is_in_it():
    known = ("deltaforge", "./dev.sh", "pip install", "export ")
    assert LINES
    assert [line for line in LINES if not line.startswith(known)] == []


def test_the_commands_of_the_table_exist():
    rows = re.findall(r"^\| (`[a-z].*?) \|", README, re.MULTILINE)
    uses = [use for row in rows for use in re.findall(r"`([a-z]+(?: [^`]*)?)`", row)]
    named = [use for use in uses if use.split()[0] in COMMANDS]

    assert {use.split()[0] for use in named} == set(COMMANDS)
    for use in named:
        asked = set(re.findall(r"--[a-z-]+", use))
        assert asked <= options(COMMANDS[use.split()[0]]), use


def test_the_first_command_runs_as_shown():
    line = next(line for line in LINES if " validate " in line)
    words = shlex.split(line, comments=True)[1:]
    outcome = subprocess.run(
        [sys.executable, "-m", "airflow_provider_deltaforge.cli.app", *words],
        cwd=CHECKOUT,
        env={"MYSQL_DSN": "mysql://df:secret@127.0.0.1:3306/shop", "KAFKA_BROKERS": "h:9092"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert outcome.returncode == 0, outcome.stderr


@pytest.mark.parametrize("text", blocks("yaml"))
def test_the_documents_are_ones_this_release_runs(text):
    load(text, expand=False).refuse_unbuilt()


@pytest.mark.airflow
@pytest.mark.parametrize("text", blocks("python"))
def test_the_operators_take_the_arguments_shown(text):
    from airflow_provider_deltaforge.operators import preflight, snapshot, stream

    classes = {**vars(preflight), **vars(snapshot), **vars(stream)}
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    built = [call for call in calls if getattr(call.func, "id", "").startswith("DeltaForge")]

    assert len(built) == 3
    for call in built:
        expression = compile(ast.Expression(call), "README.md", "eval")
        from datetime import timedelta

        eval(expression, {**classes, "DOCUMENT": "orders.yaml", "timedelta": timedelta})


def test_every_link_and_path_leads_somewhere():
    linked = re.findall(r"\]\(([^)#]+)\)", README)
    named = re.findall(r"`((?:tests|docs|dags|benchmarks)/[\w./]*)`", README)

    assert linked
    for place in [*linked, *named]:
        assert (CHECKOUT / place).exists(), place


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_page_of_the_command_line_is_complete(name):
    start = CLI_PAGE.index(f"## `deltaforge {name}`")
    section = CLI_PAGE[start : CLI_PAGE.find("## `", start + 1)]

    assert COMMANDS[name].help.partition("\n")[0] in section
    for option in options(COMMANDS[name]) - {"--help"}:
        assert option in section, f"{name} {option}: write docs/reference/cli.md anew"
