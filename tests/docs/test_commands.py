"""Every command on a page is one that this release has, with the options shown."""

import re
import shlex

import pytest

from tests.docs import cli_grammar
from tests.docs.pages import Block, Command, blocks, commands, inline_code, lines, typed

_JUDGES = {
    "deltaforge": cli_grammar.refusal,
    "./dev.sh": cli_grammar.dev_refusal,
    "python": cli_grammar.python_refusal,
    "pip": cli_grammar.pip_refusal,
}
_OTHER_PROGRAMS = {
    *(
        "export",
        "cat",
        "cp",
        "seq",
        "echo",
        "tail",
        "curl",
        ".",
        "airflow",
        "pytest",
        "redis-cli",
        "openssl",
    ),
    *("useradd", "mkdir", "python3", "systemctl", "docker", "kubectl", "hdfs", "tar"),
    *("kafka-console-consumer.sh", "$acls"),
}
"""Programs of others, which nothing here can judge; a new one is added on purpose."""
_LANGUAGES = {"", "console", "js", "json", "python", "sql", "toml", "yaml", "ini", "nginx", "text"}


def wrong(command: Command) -> str | None:
    program = command.words[0]
    if program in _JUDGES:
        return _JUDGES[program](command.words)
    return None if program in _OTHER_PROGRAMS else f"who is {program!r}?"


def test_every_command_that_readers_type_exists():
    found = typed()

    assert len(found) > 60
    assert {str(command): why for command in found if (why := wrong(command))} == {}


def test_every_command_that_a_sentence_mentions_exists():
    found = [(at, code) for at, code in inline_code() if code.startswith(("deltaforge ", "./dev"))]

    assert len(found) > 60
    assert {f"{at} {code}": why for at, code in found if (why := _mentioned(code))} == {}


def _mentioned(code: str) -> str | None:
    """Judge a usage as sentences write it: ``deltaforge run FILE [--local]``."""
    plain = re.sub(r"[\[\]…]", " ", code).split(" | ")[0]
    words = tuple(shlex.split(plain))
    if words[0] == "./dev.sh":
        return cli_grammar.dev_refusal(words)
    return cli_grammar.refusal(words, whole=False)


def test_commands_stand_in_console_blocks_behind_a_dollar():
    loose = [
        f"{block} {line}"
        for block in blocks("", "text")
        for line in block.text.splitlines()
        if re.match(r"(\$ |deltaforge |\./dev\.sh |pip install )", line)
    ]

    assert loose == []
    assert [str(block) for block in blocks("console") if not lines(block)] == []


def test_every_block_has_a_language_that_is_looked_at():
    assert [
        f"{block} {block.language}" for block in blocks() if block.language not in _LANGUAGES
    ] == []


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("deltaforge status orders --wach", "No such option: --wach"),
        ("deltaforge stats", "no command 'stats'"),
        ("deltaforge dlq lst orders", "no command 'lst'"),
        ("deltaforge status orders items", "items"),
        ("deltaforge reset", "Missing parameter: name"),
        ("deltaforge dlq", "needs a command"),
        ("deltaforge dlq replay orders --all --overtaken keep", "keep"),
        ("./dev.sh dcos", "no verb 'dcos'"),
        ("python -m airflow_provider_deltaforge.no_such", "no module"),
        ("pip install 'airflow-provider-deltaforge[mysql,oracle]'", "no extra 'oracle'"),
        ("FOO=bar deltaforge statis | cat", "no command 'statis'"),
        ("export X=$(deltaforge statos orders)", "no command 'statos'"),
        ("true && rm -rf x", "who is 'true'?"),
    ],
)
def test_a_planted_lie_is_found(line, why):
    [text] = lines(Block("page.md", 1, "console", f"$ {line}\noutput\n"))
    found = [wrong(command) or "" for command in commands(text, "page.md:1")]

    assert any(why in told for told in found), found


@pytest.mark.parametrize(
    "line",
    [
        "deltaforge status orders --watch > status.txt 2>&1",
        "DELTAFORGE_LOG=debug deltaforge run orders.yaml --local",
        "deltaforge dlq peek orders 1 | python -m json.tool",
        "sudo -u deltaforge deltaforge status",
        "deltaforge --version",
    ],
)
def test_a_good_one_is_taken(line):
    assert [wrong(command) for command in commands(line, "p")] == [None] * line.count("|") + [None]
