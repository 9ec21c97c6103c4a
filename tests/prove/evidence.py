"""What a page claims of a proof's result file, and whether the file shows it.

A page names a file with its seeds and what they are of: ``docs/proofs/kills.json`` in backquotes,
then ``(20 seeds of mysql, turso; process)``. Groups are set apart by semicolons, and every
combination of their words must have that many seeds.
"""

import itertools
import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGE = "airflow_provider_deltaforge"
GOOD = frozenset({"ok", "held"})
_IMPOSSIBLE = "not possible"
_CITED = re.compile(
    r"`docs/proofs/(?P<name>\w+)\.json`(?:\s+\((?P<seeds>\d+) seeds?(?:\s+of\s+(?P<of>[^)]+))?\))?"
)


@dataclass(frozen=True)
class Citation:
    """A result file that a page names; ``seeds`` is 0 where the page does not say how many."""

    name: str
    seeds: int
    groups: tuple[tuple[str, ...], ...]


def citations(page: str) -> Iterator[Citation]:
    """Yield every result file that a page names."""
    for found in _CITED.finditer(page):
        groups = [part.split(",") for part in (found["of"] or "").split(";") if part.strip()]
        words = tuple(tuple(" ".join(word.split()) for word in group) for group in groups)
        yield Citation(found["name"], int(found["seeds"] or 0), words)


def faults(proof: Mapping[str, Any], root: Path = ROOT) -> list[str]:
    """Return why a result file may not be cited at all."""
    commit = str(proof.get("commit", ""))
    found = []
    if proof.get("complete") is not True:
        found.append("it is not complete")
    if proof.get("uncommitted_changes") is not False:
        found.append("it was made with uncommitted changes")
    if not in_history(commit, root):
        found.append(f"its commit {commit[:12]!r} is not in this history")
    elif not str(proof.get("code", "")).startswith(code_at(commit, root)):
        found.append(f"its code is not that of its commit {commit[:12]}")
    wrong = [case for case in proof.get("cases", []) if not _is_good(case)]
    if wrong:
        found.append(f"{len(wrong)} of its cases did not hold, such as {wrong[0]}"[:300])
    return found


def uncovered(proof: Mapping[str, Any], claim: Citation) -> list[str]:
    """Return what a page claims and the file does not show."""
    if not claim.seeds:
        return ["the page does not say how many seeds it has"]
    found = []
    for words in itertools.product(*claim.groups):
        seeds = {
            case.get("seed")
            for case in proof["cases"]
            if case.get("result") in GOOD and set(words) <= set(map(str, case.values()))
        }
        if len(seeds) < claim.seeds:
            found.append(f"{len(seeds)} instead of {claim.seeds} seeds of {', '.join(words)}")
    return found


def read(name: str, root: Path = ROOT) -> dict[str, Any]:
    """Return a result file."""
    proof: dict[str, Any] = json.loads((root / "docs" / "proofs" / f"{name}.json").read_text())
    return proof


def in_history(commit: str, root: Path = ROOT) -> bool:
    """Return whether a commit is the present one or before it."""
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        return False
    words = ["git", "merge-base", "--is-ancestor", commit, "HEAD"]
    return subprocess.run(words, cwd=root, check=False, capture_output=True).returncode == 0


def code_at(commit: str, root: Path = ROOT) -> str:
    """Return the hash of the package's files at a commit."""
    return git("rev-parse", f"{commit}:{PACKAGE}", root=root)


def git(*words: str, root: Path = ROOT) -> str:
    """Return what git answers; nothing where it fails."""
    done = subprocess.run(["git", *words], cwd=root, check=False, capture_output=True, text=True)
    return done.stdout.strip()


def _is_good(case: Mapping[str, Any]) -> bool:
    result = str(case.get("result", ""))
    return result in GOOD or result.startswith(_IMPOSSIBLE)
