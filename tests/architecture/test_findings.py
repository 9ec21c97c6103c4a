"""Every fault that was found by reading has a test that exists."""

import re

from tests.architecture.probe import CHECKOUT

PAGE = CHECKOUT / "docs" / "decisions" / "findings.md"
_LINE = re.compile(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def test_every_fault_is_on_the_page():
    numbers = [int(number) for number, _, _ in _LINE.findall(PAGE.read_text())]

    assert numbers == [*range(1, 25), *range(1, 13)]


def test_every_named_test_exists():
    named = _TEST.findall(PAGE.read_text())

    assert len(named) >= 24
    for path, test in named:
        text = (CHECKOUT / path).read_text() if (CHECKOUT / path).exists() else ""
        assert re.search(rf"^ *def {test}\(", text, re.MULTILINE), f"{path}::{test}"


def test_every_fault_names_a_test():
    for number, fault, held in _LINE.findall(PAGE.read_text()):
        assert _TEST.search(held), f"{number} {fault}"
