"""A class name stands for one class."""

import ast
from collections import Counter
from pathlib import Path

from tests.architecture.probe import CHECKOUT, PACKAGE

_GLOSSARY = (CHECKOUT / "docs" / "glossary.md").read_text()


def _trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def test_a_public_class_name_exists_once():
    names = Counter(
        node.name
        for tree in _trees().values()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )

    assert [name for name, count in names.items() if count > 1] == []


def test_the_glossary_has_the_one_word_that_is_ours():
    assert "| **lane** |" in _GLOSSARY
