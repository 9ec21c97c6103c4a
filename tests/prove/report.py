"""The result file of an area: when, at which commit, and what came of each case."""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
_PACKAGE = "airflow_provider_deltaforge"
DIRECTORY = _ROOT / "docs" / "proofs"


@dataclass
class Report:
    """Collects cases and writes ``docs/proofs/<area>.json`` after each one.

    A proof that is interrupted leaves a file that says so: ``complete`` is false in it.

    Args:
        area: what is proved.
        seeds: runs of each case.
        directory: where the file lies.
        only: parts of names; other cases are left out, and the file is not complete.
        resume: keep the good cases of a file that was made with the same code.
    """

    area: str
    seeds: int
    directory: Path = DIRECTORY
    only: tuple[str, ...] = ()
    resume: bool = False
    cases: list[Mapping[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._began = _now()
        self._commit = _git("rev-parse", "HEAD")
        self._code = _git("rev-parse", f"HEAD:{_PACKAGE}")
        # Changes of other files are under way while a proof of hours runs; the file says so.
        self._changed = bool(_git("status", "--porcelain", "--", _PACKAGE))
        if self.resume:
            self._take_up()

    def wants(self, name: str, **case: Any) -> bool:
        """Say whether a case is asked for and still to be run."""
        asked = not self.only or any(part in name for part in self.only)
        known = any(case.items() <= kept.items() for kept in self.cases)
        return asked and not known

    def add(self, case: Mapping[str, Any]) -> None:
        """Keep one case, and write."""
        self.cases.append(case)
        self.write(complete=False)

    def write(self, *, complete: bool) -> None:
        """Write the file; it is whole at any moment."""
        text = {
            "area": self.area,
            "commit": self._commit,
            "code": self._code,
            "uncommitted_changes": self._changed,
            "began": self._began,
            "ended": _now(),
            "seeds": self.seeds,
            "complete": complete and not self.only,
            "cases": self.cases,
        }
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / f"{self.area}.json"
        scratch = path.with_suffix(".json.new")
        scratch.write_text(json.dumps(text, indent=1) + "\n")
        scratch.replace(path)

    def _take_up(self) -> None:
        """Keep what an interrupted run has shown.

        Raises:
            ValueError: the file was made with other code.
        """
        path = self.directory / f"{self.area}.json"
        if not path.exists():
            return
        told = json.loads(path.read_text())
        if told.get("code") != self._code or self._changed or told["uncommitted_changes"]:
            raise ValueError(
                f"{path} was made with other code than this; run {self.area} without --resume"
            )
        self._began = told["began"]
        self.cases = [case for case in told["cases"] if case["result"] != "wrong"]


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=_ROOT, check=False, capture_output=True, text=True)
    return done.stdout.strip()


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
