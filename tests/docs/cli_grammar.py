"""Whether a command line is one that this release's programs take, without running anything."""

import re
import subprocess
from functools import cache
from importlib.util import find_spec
from typing import Any

import typer

from airflow_provider_deltaforge.cli.app import app
from tests.docs.pages import CHECKOUT

_EXTRAS = re.compile(r"airflow-provider-deltaforge\[([a-z,]+)\]")
_USAGE_ERRORS = typer.BadParameter.__bases__
_ENDS_EARLY = {"--help", "--version", "--install-completion", "--show-completion"}


def refusal(words: tuple[str, ...], *, whole: bool = True) -> str | None:
    """Return what is wrong with a ``deltaforge`` command, None if nothing is.

    Args:
        words: the command, ``deltaforge`` first.
        whole: False for one that a sentence mentions, which may leave arguments out.
    """
    command: Any = typer.main.get_command(app)
    context = command.context_class(command, info_name="deltaforge")
    rest = [word for word in words[1:] if word not in _ENDS_EARLY]
    is_asked_only = len(rest) < len(words) - 1
    while True:
        path, before = context.command_path, rest
        try:
            values, rest, _ = command.make_parser(context).parse_args(list(before))
            # What a value may be, and which are needed, the command itself says.
            if whole and not (hasattr(command, "commands") or is_asked_only):
                command.make_context(context.info_name, list(before), parent=context.parent)
        except _USAGE_ERRORS as error:
            if "does not exist" not in str(error):
                return f"{path}: {error}"
        if not hasattr(command, "commands"):
            return f"{path} takes no {' '.join(rest)!r}" if rest else None
        if not rest:
            runs = bool(values) or is_asked_only or not whole
            return None if runs else f"{path} needs a command"
        name, rest = rest[0], rest[1:]
        if name not in command.commands:
            return f"{path} has no command {name!r}"
        command = command.commands[name]
        context = command.context_class(command, info_name=name, parent=context)


@cache
def dev_verbs() -> frozenset[str]:
    """Return the verbs that ``./dev.sh help`` lists."""
    listed = subprocess.check_output(["./dev.sh", "help"], cwd=CHECKOUT, text=True)
    return frozenset(re.findall(r"^  ([a-z][a-z0-9-]*) ", listed, re.MULTILINE))


def dev_refusal(words: tuple[str, ...]) -> str | None:
    """Return what is wrong with a ``./dev.sh`` command."""
    verb = words[1] if len(words) > 1 else "help"
    return None if verb in {*dev_verbs(), "help"} else f"./dev.sh has no verb {verb!r}"


def python_refusal(words: tuple[str, ...]) -> str | None:
    """Return what is wrong with ``python -m MODULE``; scripts and ``-c`` are not looked at."""
    if words[1:2] != ("-m",):
        return None
    module = words[2]
    try:
        spec = find_spec(module)
    except ModuleNotFoundError:
        spec = None
    return None if spec else f"there is no module {module}"


def pip_refusal(words: tuple[str, ...]) -> str | None:
    """Return what is wrong with ``pip install``: an extra that does not exist."""
    project = (CHECKOUT / "pyproject.toml").read_text()
    for word in words:
        for extra in (_EXTRAS.search(word) or [None, ""])[1].split(",") if "[" in word else ():
            if not re.search(rf"^{extra} = \[", project, re.MULTILINE):
                return f"there is no extra {extra!r}"
    return None
