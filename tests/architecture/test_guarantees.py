"""The page of guarantees names what shows them, and it is there."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from airflow_provider_deltaforge.plugins import SINKS
from tests.prove import evidence
from tests.prove.evidence import Citation

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text()
NAMED = sorted(set(re.findall(r"`((?:tests|docs|benchmarks)/[^`]+)`", PAGE)))
CITED = sorted(evidence.citations(PAGE), key=str)
in_a_repository = pytest.mark.skipif(
    evidence.git("rev-parse", "--is-shallow-repository") != "false",
    reason="needs the history of this repository",
)


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


@in_a_repository
@pytest.mark.parametrize("cited", CITED, ids=lambda cited: cited.name)
def test_a_cited_proof_is_complete_and_shows_what_is_claimed(cited):
    proof = evidence.read(cited.name)

    assert evidence.faults(proof) == []
    assert evidence.uncovered(proof, cited) == []


@in_a_repository
def test_no_result_file_is_of_another_history():
    files = sorted((ROOT / "docs" / "proofs").glob("*.json"))
    commits = {path.name: json.loads(path.read_text())["commit"] for path in files}

    assert [name for name, commit in commits.items() if not evidence.in_history(commit)] == []


def test_other_pages_cite_no_file_that_is_not_there():
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    named = {c.name for page in pages for c in evidence.citations(page.read_text())}

    assert [name for name in named if not (ROOT / f"docs/proofs/{name}.json").exists()] == []


@pytest.fixture
def repository(tmp_path):
    def git(*words):
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q")
    (tmp_path / evidence.PACKAGE).mkdir()
    for text in ("1", "2"):
        (tmp_path / evidence.PACKAGE / "a.py").write_text(text)
        git("add", ".")
        git("commit", "-qm", text)
    return tmp_path


def good_proof(repository):
    commit = evidence.git("rev-parse", "HEAD~1", root=repository)
    return {
        "commit": commit,
        "code": evidence.code_at(commit, repository),
        "uncommitted_changes": False,
        "complete": True,
        "cases": [{"source": "mysql", "place": "spark", "seed": 0, "result": "ok"}],
    }


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({}, ""),
        ({"complete": False}, "not complete"),
        ({"uncommitted_changes": True}, "uncommitted changes"),
        ({"commit": "64ebd751635a73e6c0080d8ac83af9067bbe3a28"}, "not in this history"),
        ({"code": "f" * 40}, "not that of its commit"),
        ({"cases": [{"seed": 0, "result": "wrong"}]}, "did not hold"),
    ],
)
def test_a_proof_that_may_not_be_cited_is_found(repository, changed, fault):
    found = evidence.faults({**good_proof(repository), **changed}, repository)

    assert [fault in told for told in found] == [True] * bool(fault)


@pytest.mark.parametrize(
    ("claim", "held"),
    [
        ("(1 seed of mysql; spark)", True),
        ("(1 seed)", True),
        ("", False),
        ("(2 seeds of mysql; spark)", False),
        ("(1 seed of mysql,\nturso; spark)", False),
        ("(1 seed of mysql; process)", False),
    ],
)
def test_a_claim_beyond_its_file_is_found(repository, claim, held):
    [cited] = evidence.citations(f"`docs/proofs/kills.json` {claim}.")

    assert cited.name == "kills"
    assert (evidence.uncovered(good_proof(repository), cited) == []) is held


def test_a_claim_is_read_in_groups():
    [cited] = evidence.citations("`docs/proofs/kills.json` (20 seeds of mysql, turso; process)")

    assert cited == Citation("kills", 20, (("mysql", "turso"), ("process",)))
