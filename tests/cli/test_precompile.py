"""``deltaforge precompile``; what it makes is used by drivers in tests/e2e/test_lean_drivers.py."""

import ast
import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import airflow_provider_deltaforge
from airflow_provider_deltaforge.columns.compiled import Kernel, manifest_suffix
from airflow_provider_deltaforge.columns.kept_code import library_places


def libraries():
    place = next(place for place in library_places() if place.is_dir())
    return {file.name: file.stat().st_mtime_ns for file in place.iterdir()}


def test_without_a_c_compiler_and_java_it_compiles_what_it_can(tmp_path):
    before = libraries()
    assert {name.removesuffix(manifest_suffix()) for name in before} >= {"mysql", "shared"}
    without = {"CC": "/bin/false", "CXX": "/bin/false", "PATH": str(tmp_path), "JAVA_HOME": ""}
    done = subprocess.run(
        [sys.executable, "-m", "airflow_provider_deltaforge.cli.app", "precompile"],
        env={**os.environ, **without},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, "")
    words = " ".join(done.stderr.split())
    assert words.count("compiled by numba only: kernels cannot be made ahead here") == 1
    assert "install a C compiler and the headers of Python" in words
    assert "kernels are compiled" in words
    assert libraries() == before


PACKAGE = Path(airflow_provider_deltaforge.__file__).parent


def module_of(file):
    """Return the name of a module of the package."""
    return ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts)


def kernels():
    """Return every kernel of the package, as ``module:function``."""
    files = [file for file in PACKAGE.rglob("*.py") if "kernel\ndef " in file.read_text()]
    modules = [import_module(module_of(file)) for file in files]
    return {each.name for m in modules for each in vars(m).values() if isinstance(each, Kernel)}


def calls_in(tree, module, known):
    """Yield the calls of a module, but for those that a kernel makes."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call):
            yield node.func
        if not (isinstance(node, ast.FunctionDef) and f"{module}:{node.name}" in known):
            yield from calls_in(node, module, known)


def called(file, known):
    """Return the kernels that a module calls from Python."""
    module, tree = module_of(file), ast.parse(file.read_text())
    places = {
        alias.asname or alias.name: (str(node.module), alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    found = set()
    for call in calls_in(tree, module, known):
        match call:
            case ast.Name(name):
                found.add(":".join(places.get(name, (module, name))))
            case ast.Attribute(ast.Name(name), attribute) if name in places:
                found.add(f"{'.'.join(places[name])}:{attribute}")
    return found & known


def test_every_kernel_that_python_calls_is_in_a_library():
    known = kernels()
    place = next(place for place in library_places() if place.is_dir())
    manifests = [json.loads(file.read_text()) for file in place.glob(f"*{manifest_suffix()}")]
    made = {name for manifest in manifests for name in manifest["kernels"]}
    wanted = set().union(*(called(file, known) for file in PACKAGE.rglob("*.py")))

    assert len(wanted) > 20
    assert wanted - made == set()
