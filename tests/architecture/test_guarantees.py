"""The page of guarantees names what shows them, and it is there."""

import re
from pathlib import Path

import pytest

from airflow_provider_deltaforge.plugins import SINKS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text()
NAMED = sorted(set(re.findall(r"`((?:tests|docs|benchmarks)/[^`]+)`", PAGE)))


def rows():
    """Return the cells of every row of the page's tables, without their heads."""
    lines = [line for line in PAGE.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[-1] != "shown by"]


@pytest.mark.parametrize("name", NAMED)
def test_what_is_named_is_there(name):
    assert (ROOT / name).is_file()


def test_every_promise_names_what_shows_it():
    assert len(rows()) > 15
    assert [row[0] for row in rows() if not re.search(r"`(tests|docs)/", row[-1])] == []


def test_every_sink_is_promised_something():
    told = " ".join(row[0] for row in rows())
    assert [name for name in SINKS.shipped if f"`{name}`" not in told] == []
