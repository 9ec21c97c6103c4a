"""Tests reach no private name of what they test: they hand it arguments, or patch a public seam."""

import ast

import pytest

from tests.architecture.probe import CHECKOUT

_PATCHES = {"setattr", "delattr", "object", "patch"}


def private_patches(source: str) -> list[tuple[int, str]]:
    """Return line and name of each private attribute that a test sets on something else."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and _called(node) in _PATCHES:
            words = [one.value for one in node.args[:2] if isinstance(one, ast.Constant)]
            names = [str(word).rpartition(".")[2] for word in words]
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            names = [] if ast.unparse(node.value) in {"self", "cls"} else [node.attr]
        else:
            continue
        found += [(node.lineno, name) for name in names if _is_private(name)]
    return found


def _called(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else ast.unparse(function)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name.isidentifier()


def test_no_test_patches_a_private_name():
    found = [
        f"{path.relative_to(CHECKOUT)}:{line} {name}"
        for path in sorted((CHECKOUT / "tests").rglob("*.py"))
        for line, name in private_patches(path.read_text())
    ]

    assert not found


@pytest.mark.parametrize(
    "source",
    [
        'monkeypatch.setattr(module, "_WAIT_S", 0)',
        'monkeypatch.setattr("package.module._WAIT_S", 0)',
        'setattr(module, "_WAIT_S", 0)',
        'patch("package.module._wait")',
        'patch.object(module, "_wait")',
        "writer._patience_s = 0",
        "first, writer._producer = writer._producer, first",
        "del writer._producer",
    ],
)
def test_the_measure_bites(source):
    assert len(private_patches(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        'monkeypatch.setattr(module, "WAIT_S", 0)',
        'monkeypatch.setitem(os.environ, "_", "1")',
        "self._made = 1",
        "value = writer._producer",
        'patch.object(Kind, "__init__", refuse)',
    ],
)
def test_the_measure_spares_the_rest(source):
    assert private_patches(source) == []
