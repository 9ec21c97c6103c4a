"""Import modules in a fresh interpreter in which some distributions are absent."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
PACKAGE = CHECKOUT / "airflow_provider_deltaforge"

_PROGRAM = """
import importlib, json, sys

class Absent:
    def __init__(self, names): self.names = frozenset(names)
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

asked = json.load(sys.stdin)
sys.meta_path.insert(0, Absent(asked["absent"]))
failures = {}
for module in asked["modules"]:
    try:
        importlib.import_module(module)
    except BaseException as error:
        failures[module] = f"{type(error).__name__}: {error}"
print(json.dumps(failures))
"""


def modules(below: Path = PACKAGE) -> list[str]:
    """Return the dotted names of all modules of the package below a directory."""
    return sorted(_dotted(path) for path in below.rglob("*.py"))


def failed_imports(
    names: Iterable[str], *, absent: Iterable[str], path: Path | None = None
) -> dict[str, str]:
    """Return module to error for those of ``names`` that need something absent.

    Args:
        names: dotted module names.
        absent: top-level packages that cannot be imported.
        path: an extra directory to import from.
    """
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        check=True,
        input=json.dumps({"modules": list(names), "absent": list(absent)}),
        stdout=subprocess.PIPE,
        text=True,
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONPATH": str(path or CHECKOUT)},
    )
    failures: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return failures


def _dotted(path: Path) -> str:
    parts = list(path.relative_to(CHECKOUT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
