"""The tests that are marked ``long``: variants for which continuous integration has no time."""

import subprocess
import sys
import time
import xml.etree.ElementTree as Tree
from collections.abc import Iterator

from tests.ordering import rough_s
from tests.prove.evidence import ROOT
from tests.prove.unit import Task, Unit

SEEDS = 1
_MARK = "mark." + "long"
_NO_TESTS = 5
"""What pytest ends with where none of a file's tests has the mark."""
_WRONG = {"failure", "error", "skipped"}


def units(seeds: int) -> list[Unit]:
    """Return one unit for each file that has such tests."""
    return [
        Unit(
            area="long",
            name=f"{path.removeprefix('tests/')}/{seed}",
            run=f"{__name__}:run",
            cases=[{"file": path, "seed": seed}],
            kind="files",
            seconds=max(20.0, min(rough_s(path), 90)),
            limit_s=2400,
        )
        for seed in range(seeds)
        for path in files()
    ]


def files() -> Iterator[str]:
    """Yield the files that have tests with the mark, or may have it from their folder."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        shared = path.with_name("conftest.py")
        if _MARK in path.read_text() or (shared.exists() and _MARK in shared.read_text()):
            yield str(path.relative_to(ROOT))


def run(task: Task) -> None:
    """Run one file's tests; they start servers of their own."""
    [case] = task.cases
    began = time.monotonic()
    results = task.home / "results.xml"
    words = ["-m", "pytest", "-m", "long", f"--junit-xml={results}", case["file"]]
    words.append(f"--basetemp={task.home / 'temporary'}")
    done = subprocess.run([sys.executable, *words], cwd=ROOT, check=False)
    tests = list(Tree.parse(results).iter("testcase")) if results.exists() else []
    wrong = [
        f"{test.get('name')}: {found.tag}: {(found.get('message') or '')[:500]}"
        for test in tests
        for found in test
        if found.tag in _WRONG
    ]
    if done.returncode not in (0, _NO_TESTS) and not wrong:
        wrong.append(f"pytest ended with {done.returncode}")
    told = {"tests": len(tests), "seconds": round(time.monotonic() - began, 1)}
    task.add({**case, **told, "result": "wrong" if wrong else "ok", "wrong": wrong})
