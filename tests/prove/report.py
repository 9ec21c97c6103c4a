"""The result file of an area: when, at which commit, and what came of each case."""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tests.prove import evidence
from tests.prove.evidence import PACKAGE, ROOT
from tests.prove.unit import Case, Unit

DIRECTORY = ROOT / "docs" / "proofs"
_ALSO = "spark_jobs"
"""What the wheel takes from outside of the package."""


@dataclass
class Report:
    """Collects cases and writes ``docs/proofs/<area>.json`` after each one.

    It is complete when every case of the area's own number of seeds is there and has held, and
    nothing of the code is uncommitted.

    Args:
        area: what is proved.
        seeds: runs of each case.
        wanted: the cases that have to be there.
        directory: where the file lies.
        whole: whether these are all cases that the area needs.
        resume: keep the good cases of a file that was made with the same code.
        lacks: says what the good cases do not show, beyond being there.
    """

    area: str
    seeds: int
    wanted: Sequence[Case]
    directory: Path = DIRECTORY
    whole: bool = True
    resume: bool = False
    lacks: Callable[[Sequence[Mapping[str, Any]]], list[str]] = lambda _: []
    cases: list[Mapping[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._began = _now()
        self._commit = evidence.git("rev-parse", "HEAD")
        self._code = code_now()
        # Changes of other files are under way while a proof of hours runs; the file says so.
        self._changed = bool(evidence.git("status", "--porcelain", "--", PACKAGE, _ALSO))
        if self.resume:
            self._take_up()

    def missing(self) -> list[Case]:
        """Return the cases that are still to be run."""
        shown = held(self.wanted, self.cases)
        return [case for case, is_held in zip(self.wanted, shown, strict=True) if not is_held]

    def add(self, case: Mapping[str, Any]) -> None:
        """Keep one case, and write."""
        with self._lock:
            self.cases.append(case)
            self._write()

    @property
    def complete(self) -> bool:
        """Return whether the file shows everything that the area is about."""
        is_wrong = any(case["result"] == "wrong" for case in self.cases)
        if not self.whole or is_wrong or self.missing() or self.lacks(self.cases):
            return False
        return not self._changed and code_now() == self._code

    @property
    def path(self) -> Path:
        """Return the file."""
        return self.directory / f"{self.area}.json"

    def _write(self) -> None:
        """Write the file; it is whole at any moment."""
        text = {
            "area": self.area,
            "commit": self._commit,
            "code": self._code,
            "uncommitted_changes": self._changed,
            "began": self._began,
            "ended": _now(),
            "seeds": self.seeds,
            "complete": self.complete,
            "coverage": coverage(self.wanted, self.cases),
            "lacking": self.lacks([case for case in self.cases if case["result"] != "wrong"]),
            "cases": self.cases,
        }
        self.directory.mkdir(parents=True, exist_ok=True)
        scratch = self.path.with_suffix(".json.new")
        scratch.write_text(json.dumps(text, indent=1, default=str) + "\n")
        scratch.replace(self.path)

    def _take_up(self) -> None:
        """Keep what an interrupted run has shown; a complete file of other code is replaced.

        Raises:
            ValueError: the file is incomplete, and was made with other code.
        """
        if not self.path.exists():
            return
        former = json.loads(self.path.read_text())
        committed = not (self._changed or former["uncommitted_changes"])
        if committed and former.get("code") == self._code:
            self._began, self._commit = former["began"], former["commit"]
            self.cases = [case for case in former["cases"] if case["result"] != "wrong"]
        elif not former["complete"]:
            raise ValueError(
                f"{self.path} was made with other code than this; run {self.area} without --resume"
            )


def code_now() -> str:
    """Return the hash of the code that is committed now; results of one code count together."""
    package, also = (evidence.git("rev-parse", f"HEAD:{name}") for name in (PACKAGE, _ALSO))
    return f"{package}.{also[:12]}"


def held(wanted: Sequence[Case], cases: Iterable[Mapping[str, Any]]) -> list[bool]:
    """Return of each wanted case whether it is among the cases, which say more than it does."""
    shapes = {tuple(case) for case in wanted}
    shown = {
        (shape, tuple(case[name] for name in shape))
        for case in cases
        for shape in shapes
        if case.keys() >= set(shape)
    }
    return [(tuple(case), tuple(case.values())) in shown for case in wanted]


def coverage(wanted: Sequence[Case], cases: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return how much is there: of each kind of case how many have held, and where was killed."""
    good = [case for case in cases if case.get("result") != "wrong"]
    asked: Counter[str] = Counter()
    shown: Counter[str] = Counter()
    for case, is_held in zip(wanted, held(wanted, good), strict=True):
        asked[_kind(case)] += 1
        shown[_kind(case)] += is_held
    matrix: dict[str, dict[str, int]] = {}
    for case in good:
        cells = matrix.setdefault(_kind(case, wanted), {}) if case.get("kills") else {}
        for kill in case.get("kills", ()):
            where, _, who = str(kill).partition(" ")
            cell = f"{where.partition(':')[0]} / {who}"
            cells[cell] = cells.get(cell, 0) + 1
    kinds = {kind: f"{shown[kind]} of {count}" for kind, count in asked.items()}
    return {"held": kinds, **({"kills": matrix} if matrix else {})}


def _kind(case: Mapping[str, Any], wanted: Sequence[Case] = ()) -> str:
    names = wanted[0].keys() if wanted else case.keys()
    return " ".join(str(case.get(name)) for name in names if name != "seed") or "all"


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def units_missing(units: Sequence[Unit], report: Report) -> list[Unit]:
    """Return the units of which something is missing, with only that."""
    missing = report.missing()
    found = []
    for unit in units:
        cases = [case for case in unit.cases if case in missing]
        if cases:
            share = len(cases) / len(unit.cases)
            found.append(replace(unit, cases=cases, seconds=unit.seconds * share))
    return found
