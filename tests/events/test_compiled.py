"""Machine code of an earlier version is never used, whatever file the change was in."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_deltaforge.columns import compiled

OUTER = """
from airflow_provider_deltaforge.columns.compiled import kernel
from airflow_provider_deltaforge.inner import FACTOR, scaled

@kernel
def outer(x):
    return scaled(x) + FACTOR
"""
INNER = """
from airflow_provider_deltaforge import (
    constants,
)
from airflow_provider_deltaforge.columns.compiled import kernel

FACTOR = constants.FACTOR

@kernel
def scaled(x):
    return 10 * x
"""
RUN = """
from airflow_provider_deltaforge.outer import outer
print(outer(1), sum(outer.stats.cache_hits.values()))
"""
OF_TUPLES = """
from typing import NamedTuple

from airflow_provider_deltaforge.columns.compiled import kernel

class NAME(NamedTuple):
    x: int

Argument = NAME

@kernel
def outer(argument):
    return 10 * argument.x
"""
RUN_OF_TUPLES = """
from airflow_provider_deltaforge.outer import Argument, outer
print(outer(Argument(1)), sum(outer.stats.cache_hits.values()))
"""

POWERLESS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--")
"""Starts a process that is held to the permissions of files, even if it is root's."""


@pytest.fixture
def package(tmp_path):
    """A small package under our name, with our own way of compiling."""
    root = tmp_path / "site" / "airflow_provider_deltaforge"
    (root / "columns").mkdir(parents=True)
    (root / "__init__.py").touch()
    (root / "columns" / "__init__.py").touch()
    (root / "columns" / "compiled.py").write_text(Path(compiled.__file__).read_text())
    (root / "outer.py").write_text(OUTER)
    (root / "inner.py").write_text(INNER)
    (root / "constants.py").write_text("FACTOR = 0\n")
    return root


def run(package, program=RUN, before=(), **environment):
    outcome = subprocess.run(
        [*before, sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(package.parent), **environment},
        cwd=package.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    return outcome.stdout.split(), outcome.stderr


def test_a_change_below_a_kernel_compiles_it_again(package):
    run(package)
    # A kernel that it calls, and a constant below that one.
    for file, before, after, expected in (
        ("inner.py", "10 * x", "20 * x", "20"),
        ("constants.py", "FACTOR = 0", "FACTOR = 7", "27"),
    ):
        (package / file).write_text((package / file).read_text().replace(before, after))

        assert run(package)[0] == [expected, "0"]


@pytest.mark.parametrize("place", ["package", "home"])
def test_code_is_compiled_once_and_kept_where_one_may_write(package, tmp_path, place):
    """A file in the way stands for a read-only directory, which root would write to."""
    home = tmp_path / "home"
    home.mkdir()
    if place == "home":
        (package / "__pycache__").write_text("in the way")
    told = {"XDG_CACHE_HOME": str(home / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    assert run(package, **told)[0] == ["10", "0"]

    assert bool(list(home.rglob("*.nbc"))) == (place == "home")
    assert run(package, **told)[0] == ["10", "1"]


def test_code_of_a_release_with_other_classes_is_compiled_again(package):
    """Machine code is kept by the types of its arguments, classes of ours among them."""
    for name in ("First", "Second"):
        (package / "outer.py").write_text(OF_TUPLES.replace("NAME", name))

        assert run(package, program=RUN_OF_TUPLES)[0] == ["10", "0"]
        assert run(package, program=RUN_OF_TUPLES)[0] == ["10", "1"]


def test_with_nowhere_to_write_it_compiles_and_says_so(package, tmp_path):
    (package / "__pycache__").write_text("in the way")
    (tmp_path / "no-home").write_text("in the way")
    cache = str(tmp_path / "no-home" / "cache")
    told = {"XDG_CACHE_HOME": cache, "NUMBA_CACHE_DIR": "", "PYTHONDONTWRITEBYTECODE": "1"}
    found, said = run(package, **told)

    assert found == ["10", "0"]
    assert "set NUMBA_CACHE_DIR" in said


def test_code_that_came_with_a_read_only_package_is_used(package, tmp_path):
    """As in an archive that a cluster unpacks for a user who has no home there."""
    assert run(package, PYTHONDONTWRITEBYTECODE="1")[0] == ["10", "0"]
    for directory in (package, package / "__pycache__"):
        directory.chmod(0o500)
    (tmp_path / "no-home").write_text("in the way")
    cache = str(tmp_path / "no-home" / "cache")
    told = {"XDG_CACHE_HOME": cache, "NUMBA_CACHE_DIR": "", "PYTHONDONTWRITEBYTECODE": "1"}

    found, said = run(package, **told, before=POWERLESS)

    assert found == ["10", "1"]
    assert said == ""
    assert run(package, **{**told, "XDG_CACHE_HOME": str(tmp_path)}, before=POWERLESS)[0][1] == "1"


def test_every_kernel_of_ours_is_kept_this_way():
    from airflow_provider_deltaforge.sources.mysql.binlog import row_kernel

    stamp = compiled.source_stamp(Path(row_kernel.__file__))

    assert row_kernel.decode_rows._cache._cache_file._source_stamp == stamp
