"""Modules stay under 450 lines and functions under 60, and are named by what they are about."""

import ast
from pathlib import Path

import pytest

from tests.architecture.probe import CHECKOUT

_LINES_MAX = 450
_CASES_MAX = 500  # A file of test cases is a list, read one by one.
_FUNCTION_LINES_MAX = 60
_KERNEL_LINES_MAX = 100  # A compiled state machine: its branches belong in one place.
_SHIPPED = ("airflow_provider_deltaforge", "spark_jobs", "dags", "benchmarks")
_VAGUE = {"utils", "util", "helpers", "common", "misc", "types", "manager"}


def _sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (CHECKOUT / folder).rglob("*.py"))


def _limit(name: str) -> int:
    return _CASES_MAX if name.startswith("tests/") else _LINES_MAX


def long_functions(source: str) -> list[str]:
    """Return ``name (lines)`` for each function above its limit, decorators not counted."""
    lengths = {
        node: (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    return [
        f"{node.name} ({length})"
        for node, length in lengths.items()
        if length > (_KERNEL_LINES_MAX if _is_kernel(node) else _FUNCTION_LINES_MAX)
    ]


def _is_kernel(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return "kernel" in {ast.unparse(one).partition("(")[0] for one in node.decorator_list}


def test_modules_are_short():
    lengths = {
        str(path.relative_to(CHECKOUT)): len(path.read_text().splitlines())
        for path in _sources(*_SHIPPED, "tests")
    }

    assert {name: count for name, count in lengths.items() if count > _limit(name)} == {}


def test_functions_are_short():
    found = {
        str(path.relative_to(CHECKOUT)): long_functions(path.read_text())
        for path in _sources(*_SHIPPED, "tests")
    }

    assert {name: functions for name, functions in found.items() if functions} == {}


@pytest.mark.parametrize(
    ("head", "count", "found"),
    [
        pytest.param("", 60, [], id="at the limit"),
        pytest.param("", 61, ["long (61)"], id="above it"),
        pytest.param("@other\n", 61, ["long (61)"], id="decorated"),
        pytest.param("@kernel\n", 100, [], id="a kernel at its limit"),
        pytest.param("@kernel\n", 101, ["long (101)"], id="a kernel above it"),
    ],
)
def test_the_measure_bites(head, count, found):
    source = f"{head}def long():\n" + "    x = 1\n" * (count - 1)

    assert long_functions(source) == found


def test_no_module_has_a_vague_name():
    names = {path.stem for path in _sources(*_SHIPPED, "tests")}
    folders = {path.parent.name for path in _sources(*_SHIPPED, "tests")}

    assert (names | folders) & _VAGUE == set()
