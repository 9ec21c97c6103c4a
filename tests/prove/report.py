"""The result file of an area: when, at which commit, and what came of each case."""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
DIRECTORY = _ROOT / "docs" / "proofs"


@dataclass
class Report:
    """Collects cases and writes ``docs/proofs/<area>.json`` after each one.

    A proof that is interrupted leaves a file that says so: ``complete`` is false in it.
    """

    area: str
    seeds: int
    directory: Path = DIRECTORY
    cases: list[Mapping[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._began = _now()
        self._commit = _git("rev-parse", "HEAD")
        # Changes of other files are under way while a proof of hours runs; the file says so.
        self._changed = bool(_git("status", "--porcelain", "--", "airflow_provider_deltaforge"))

    def add(self, case: Mapping[str, Any]) -> None:
        """Keep one case, and write."""
        self.cases.append(case)
        self.write(complete=False)

    def write(self, *, complete: bool) -> None:
        """Write the file; it is whole at any moment."""
        text = {
            "area": self.area,
            "commit": self._commit,
            "uncommitted_changes": self._changed,
            "began": self._began,
            "ended": _now(),
            "seeds": self.seeds,
            "complete": complete,
            "cases": self.cases,
        }
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / f"{self.area}.json"
        scratch = path.with_suffix(".json.new")
        scratch.write_text(json.dumps(text, indent=1) + "\n")
        scratch.replace(path)


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=_ROOT, check=False, capture_output=True, text=True)
    return done.stdout.strip()


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
