"""``python -m tests.prove [area …]``: run long proofs and write what they found.

An area is one module of this package with a docstring and a function
``prove(seeds: int, report: Report) -> bool``.
"""

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Collection, Sequence

import tests.prove
from tests.prove.report import Report

_NOT_AREAS = {"__main__", "report"}


def areas() -> list[str]:
    """Return the names of all areas: the modules of this package."""
    found = pkgutil.iter_modules(tests.prove.__path__)
    names = (module.name for module in found)
    return sorted(n for n in names if n not in _NOT_AREAS and not n.startswith("test_"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the named areas, all without a name; return 1 if one found something wrong."""
    known = areas()
    parser = argparse.ArgumentParser(prog="python -m tests.prove", description=__doc__)
    parser.add_argument("areas", nargs="*", metavar="area", help=f"of {', '.join(known)}")
    parser.add_argument("--seeds", type=_positive, default=1, metavar="n", help="runs of each case")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="text",
        help="only cases whose name holds this, such as jvm or sink_written/executor, or a variant"
        " that has a file of its own, such as kills --only postgres; repeatable",
    )
    parser.add_argument(
        "--resume", action="store_true", help="keep the good cases of an interrupted run"
    )
    chosen = parser.parse_args(arguments)
    asked = [name.replace("-", "_") for name in chosen.areas]
    unknown = sorted(set(asked) - set(known))
    if unknown:
        parser.error(f"unknown area {unknown[0]!r} (known: {', '.join(known)})")
    wrong = []
    wanted: dict[str, tuple[str, ...]] = {}
    for name in asked or known:
        for area, only in chosen_of(name, chosen.only, known):
            wanted.setdefault(area, only)
    for name, only in wanted.items():
        module = importlib.import_module(f"tests.prove.{name}")
        try:
            report = Report(name, chosen.seeds, only=only, resume=chosen.resume)
        except ValueError as error:
            parser.error(str(error))
        if not module.prove(chosen.seeds, report):
            wrong.append(name)
    return 1 if wrong else 0


def chosen_of(
    name: str, only: Sequence[str], known: Collection[str]
) -> list[tuple[str, tuple[str, ...]]]:
    """Return areas and which of their cases: ``kills --only postgres`` is all ``kills_postgres``.

    A variant is an area with a file of its own, so that neither spoils the other's.
    """
    variants = [text for text in only if f"{name}_{text}" in known]
    rest = tuple(text for text in only if text not in variants)
    found = [(f"{name}_{text}", ()) for text in variants]
    return found if variants and not rest else [(name, rest), *found]


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
