"""The first page that a newcomer reads does what it says, and so do other pages' commands."""

import re

import pytest

from tests.docs import walk
from tests.docs.pages import CHECKOUT, fences, tokens
from tests.docs.shell import Shell, matches

PAGE = CHECKOUT / "docs" / "first_pipeline.md"
_READERS_OWN = ("python -m venv", ". .venv", "pip install")


def test_every_command_does_what_is_shown(tmp_path):
    shell = Shell(tmp_path, _READERS_OWN)
    try:
        for block in fences(tokens(PAGE), "docs/first_pipeline.md"):
            if block.language == "console":
                if "dlq ack" in block.text:
                    walk.run(shell, walk.RUNNING)
                shell.type(block)
            elif name := re.match(r"# ([\w.]+)\n", block.text):
                (tmp_path / name[1]).write_text(block.text)
            else:
                _add(tmp_path / "orders.yaml", block.text)
        walk.run(shell, walk.STOPPED)
    finally:
        shell.close()

    said = shell.log.read_text()
    assert said.count("orders: stopped as asked") == 2
    assert "Traceback" not in said


def test_every_command_of_the_pages_is_run_or_says_why_not():
    on_pages, run_here = walk.on_pages(), {*walk.RUNNING, *walk.STOPPED}

    assert {c for c in on_pages if not walk.is_excused(c)} - run_here == set()
    assert run_here - on_pages == set()
    assert walk.unneeded_excuses() == []


def _add(document, part):
    """Put a part where the page says: between source and sinks."""
    document.write_text(document.read_text().replace("  sinks:\n", f"{part}  sinks:\n"))


@pytest.mark.parametrize(
    ("shown", "said", "fits"),
    [
        (["a  b"], "a     b  \n", True),
        (["a …"], "a 17 ms ago\n", True),
        (["first", "second"], "first\nbetween\nsecond\n", True),
        (["second", "first"], "first\nsecond\n", False),
        (["a"], "ab\n", False),
        ([], "whatever", True),
    ],
)
def test_what_is_shown_is_compared(shown, said, fits):
    assert matches(shown, said) is fits
