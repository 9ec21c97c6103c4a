"""Names say what a value is, and a class name stands for one class."""

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.architecture.probe import CHECKOUT, PACKAGE

_BENCHMARKS = CHECKOUT / "benchmarks"
_SAYS_NOTHING = {"told", "one", "said", "given", "stood"}
_STORED = ("dead_letters.py", "stood")
"""A key of stored records, which stay as they are."""
_GLOSSARY = (CHECKOUT / "docs" / "glossary.md").read_text()


@cache
def _trees(*roots: Path) -> dict[Path, ast.Module]:
    return {
        path: ast.parse(path.read_text()) for root in roots for path in sorted(root.rglob("*.py"))
    }


def values(tree: ast.AST) -> list[tuple[int, str]]:
    """Return line and name of every variable, argument, attribute and function that is made."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.append((node.lineno, node.id if isinstance(node, ast.Name) else node.attr))
        elif isinstance(node, ast.arg):
            found.append((node.lineno, node.arg))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.append((node.lineno, node.name))
    return found


def test_no_value_has_a_name_that_says_nothing():
    found = [
        f"{path.relative_to(CHECKOUT)}:{line}: {name}"
        for path, tree in _trees(PACKAGE, _BENCHMARKS).items()
        for line, name in values(tree)
        if name.strip("_") in _SAYS_NOTHING and (path.name, name) != _STORED
    ]

    assert found == []


def test_a_public_class_name_exists_once():
    names = Counter(
        node.name
        for tree in _trees(PACKAGE).values()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )

    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize(
    "source",
    ["told = 1", "self._told = 1", "for one in x: pass", "def f(given): pass", "def said(): pass"],
)
def test_the_measure_bites(source):
    assert {name.strip("_") for _, name in values(ast.parse(source))} & _SAYS_NOTHING


def test_the_glossary_has_the_one_word_that_is_ours():
    assert "| **lane** |" in _GLOSSARY
