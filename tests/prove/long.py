"""The tests that are marked ``long``: variants for which continuous integration has no time."""

import subprocess
import sys
import tempfile
import xml.etree.ElementTree as Tree
from pathlib import Path

from tests.prove.report import Report

_ROOT = Path(__file__).parents[2]
_WRONG = {"failure", "error", "skipped"}


def prove(seeds: int, report: Report) -> bool:
    """Run them; say whether all passed."""
    held = True
    for seed in range(seeds):
        with tempfile.TemporaryDirectory(prefix="deltaforge-long-") as place:
            results = Path(place) / "results.xml"
            words = ["-m", "pytest", "-m", "long", f"--junit-xml={results}"]
            chosen = ["-k", " or ".join(report.only)] if report.only else []
            done = subprocess.run([sys.executable, *words, *chosen], cwd=_ROOT, check=False)
            for case in Tree.parse(results).iter("testcase"):
                wrong = [found.tag for found in case if found.tag in _WRONG]
                told = {"test": f"{case.get('classname')}::{case.get('name')}", "seed": seed}
                seconds = round(float(case.get("time", 0)), 1)
                report.add({**told, "seconds": seconds, "result": wrong[0] if wrong else "ok"})
        held = held and done.returncode == 0
    report.write(complete=True)
    return held
