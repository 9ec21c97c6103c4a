"""Machine code of an earlier version is never used, whatever file the change was in."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_deltaforge.columns import compiled, kept_code

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
print(outer(1), sum(outer.dispatcher.stats.cache_hits.values()))
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
KEEP = """
from airflow_provider_deltaforge.columns.compiled import recorded
from airflow_provider_deltaforge.columns.library_builder import build
from airflow_provider_deltaforge.outer import outer
with recorded() as calls:
    outer(1)
print(build("small", calls))
"""
USE = """
import sys
import numpy as np
from airflow_provider_deltaforge.outer import outer
print(outer(ARGUMENT), "numba" in sys.modules)
"""
RUN_OF_TUPLES = """
from airflow_provider_deltaforge.outer import Argument, outer
print(outer(Argument(1)), sum(outer.dispatcher.stats.cache_hits.values()))
"""

POWERLESS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--")
"""Starts a process that is held to the permissions of files, even if it is root's."""


def written(directory):
    """Return a small package under our name, with our own way of compiling."""
    root = directory / "site" / "airflow_provider_deltaforge"
    (root / "columns").mkdir(parents=True)
    (root / "__init__.py").touch()
    (root / "columns" / "__init__.py").touch()
    for name in ("compiled", "jit", "library_builder", "kept_code"):
        file = Path(compiled.__file__).with_name(f"{name}.py")
        (root / "columns" / file.name).write_text(file.read_text())
    (root / "errors.py").write_text("class DeltaForgeError(Exception):\n    pass\n")
    (root / "outer.py").write_text(OUTER)
    (root / "inner.py").write_text(INNER)
    (root / "constants.py").write_text("FACTOR = 0\n")
    return root


@pytest.fixture
def package(tmp_path):
    return written(tmp_path)


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
    # Python itself takes a file for unchanged that keeps its size and its second.
    source_only = {"PYTHONDONTWRITEBYTECODE": "1"}
    run(package, **source_only)
    # A kernel that it calls, and a constant below that one.
    for file, before, after, expected in (
        ("inner.py", "10 * x", "20 * x", "20"),
        ("constants.py", "FACTOR = 0", "FACTOR = 7", "27"),
    ):
        (package / file).write_text((package / file).read_text().replace(before, after))

        assert run(package, **source_only)[0] == [expected, "0"]


def test_code_is_compiled_once_and_kept_where_one_may_write(package, tmp_path):
    """A file in the way stands for a read-only directory, which root would write to."""
    home = tmp_path / "home"
    home.mkdir()
    (package / "__pycache__").write_text("in the way")
    environment = {"XDG_CACHE_HOME": str(home / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    assert run(package, **environment)[0] == ["10", "0"]

    assert list(home.rglob("*.nbc"))
    assert run(package, **environment)[0] == ["10", "1"]


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
    environment = {
        "XDG_CACHE_HOME": cache,
        "NUMBA_CACHE_DIR": "",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    found, messages = run(package, **environment)

    assert found == ["10", "0"]
    assert "set NUMBA_CACHE_DIR" in messages


def test_code_that_came_with_a_read_only_package_is_used(package, tmp_path):
    """As in an archive that a cluster unpacks for a user who has no home there."""
    assert run(package, PYTHONDONTWRITEBYTECODE="1")[0] == ["10", "0"]
    for directory in (package, package / "__pycache__"):
        directory.chmod(0o500)
    (tmp_path / "no-home").write_text("in the way")
    cache = str(tmp_path / "no-home" / "cache")
    environment = {"XDG_CACHE_HOME": cache, "NUMBA_CACHE_DIR": "", "PYTHONDONTWRITEBYTECODE": "1"}

    found, messages = run(package, **environment, before=POWERLESS)

    assert found == ["10", "1"]
    assert messages == ""
    environment["XDG_CACHE_HOME"] = str(tmp_path)
    assert run(package, **environment, before=POWERLESS)[0][1] == "1"


def test_every_kernel_of_ours_is_kept_this_way():
    from airflow_provider_deltaforge.sources.mysql.binlog import row_kernel

    stamp = kept_code.source_stamp(Path(row_kernel.__file__))

    assert row_kernel.decode_rows.dispatcher._cache._cache_file._source_stamp == stamp


@pytest.fixture(scope="module")
def with_library(tmp_path_factory):
    """A package with a library that has ``outer`` for an int, which takes seconds to make."""
    package = written(tmp_path_factory.mktemp("made"))
    run(package, KEEP)
    return package


@pytest.fixture
def library(package, with_library):
    """The manifest of the package's library."""
    shutil.copytree(with_library, package, dirs_exist_ok=True)
    [manifest] = (package / "columns" / "compiled_kernels").glob("*.json")
    return manifest


def use(package, argument="1", **environment):
    """Return what ``outer`` answers in a new process, and whether that had to import numba."""
    [answer, compiled_here], _ = run(package, USE.replace("ARGUMENT", argument), **environment)
    return answer, compiled_here == "True"


@pytest.mark.usefixtures("library")
def test_a_change_below_a_kernel_leaves_its_library_aside(package):
    changed = (package / "inner.py").read_text().replace("10 * x", "20 * x")
    (package / "inner.py").write_text(changed)

    assert use(package) == ("20", True)
    run(package, KEEP)
    assert use(package) == ("20", False)


@pytest.mark.parametrize(
    ("argument", "answer"),
    [
        ("2.5", "25.0"),
        ("True", "10"),
        ("1 << 63", str((10 << 63) % (1 << 64))),
        ("np.int32(3)", "30"),
    ],
)
@pytest.mark.usefixtures("library")
def test_a_library_is_never_called_with_what_it_was_not_made_for(package, argument, answer):
    assert use(package, argument) == (answer, True)


def test_a_library_takes_arrays_as_they_were(package):
    """Others of this type could be read beyond their end, or written to."""
    (package / "inner.py").write_text((package / "inner.py").read_text().replace("10 * x", "x[1]"))
    run(package, KEEP.replace("outer(1)", "import numpy; outer(numpy.arange(4))"))

    assert use(package, "np.arange(4)") == ("1", False)
    assert use(package, "np.arange(4)[::2]") == ("2", True)
    assert use(package, "np.arange(4, dtype=np.int32)") == ("1", True)
    assert use(package, "np.broadcast_to(np.int64(3), 4).copy()") == ("3", False)
    assert use(package, "np.frombuffer(bytes(32), np.int64)") == ("0", True)


@pytest.mark.parametrize("what", ["no file", "half a file", "half a manifest"])
def test_a_damaged_library_is_left_aside(package, library, what):
    [code] = library.parent.glob("*.so")
    file = library if "manifest" in what else code
    half = file.read_bytes()[: file.stat().st_size // 2]
    file.unlink()
    if what.startswith("half"):
        file.write_bytes(half)

    assert use(package) == ("10", True)


def test_a_library_replaces_the_last_of_its_name(package, library):
    before = {file.name for file in library.parent.iterdir()}
    (package / "constants.py").write_text("FACTOR = 7\n")
    run(package, KEEP)

    after = {file.name for file in library.parent.iterdir()}
    assert len(before) == len(after) == 2
    assert before & after == {library.name}
    assert use(package) == ("17", False)


def test_a_chosen_directory_comes_first(package, library, tmp_path):
    chosen = tmp_path / "chosen"
    [kept], _ = run(package, KEEP, NUMBA_CACHE_DIR=str(chosen))

    assert Path(kept).parent == chosen
    library.unlink()
    assert use(package, NUMBA_CACHE_DIR=str(chosen)) == ("10", False)
    assert use(package) == ("10", True)


def test_without_a_c_compiler_the_reason_is_said(package):
    with pytest.raises(subprocess.CalledProcessError) as refused:
        run(package, KEEP, CC="/bin/false", CXX="/bin/false")

    assert "NoCompilerError: kernels cannot be made ahead here: install a C comp" in (
        refused.value.stderr
    )


def test_code_of_a_library_lets_other_threads_run(package):
    """It is compiled by another path than kernels at first use, which has flags of its own."""
    (package / "inner.py").write_text(
        "from airflow_provider_deltaforge.columns.compiled import kernel\nFACTOR = 0\n"
        "@kernel\ndef scaled(x):\n    found = 1\n"
        "    for at in range(x * 1_000_000_000):\n        found = found * 31 + (found >> 7) + at\n"
        "    return found\n"
    )
    run(package, KEEP.replace("outer(1)", "outer(0)"))
    program = """
import sys, threading, time
from airflow_provider_deltaforge.outer import outer
outer(0)
longest = 0.0
kernel = threading.Thread(target=outer, args=(1,))
began = last = time.monotonic()
kernel.start()
while kernel.is_alive():
    now = time.monotonic()
    longest, last = max(longest, now - last), now
    time.sleep(0.001)
print(longest < (time.monotonic() - began) / 2, "numba" in sys.modules)
"""

    assert run(package, program)[0] == ["True", "False"]


def test_threads_that_call_a_kernel_first_load_its_library_once(package, library):
    """As a decoder and a renderer do, side by side."""
    program = """
import sys, threading
from airflow_provider_deltaforge.columns import compiled
from airflow_provider_deltaforge.outer import outer
loaded, load = [], compiled.module_from_spec
compiled.module_from_spec = lambda spec: (loaded.append(spec), load(spec))[1]
gate = threading.Barrier(8)
threads = [threading.Thread(target=lambda: (gate.wait(), outer(1))) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(loaded), outer(1), "numba" in sys.modules)
"""

    assert run(package, program)[0] == ["1", "10", "False"]


def test_a_user_without_a_home_has_no_cache_directory(package):
    program = """
import os
from airflow_provider_deltaforge.columns.kept_code import library_places
os.path.expanduser = lambda path: path  # As for a number that /etc/passwd does not know.
print(*library_places())
"""
    found, _ = run(package, program, XDG_CACHE_HOME="", NUMBA_CACHE_DIR="")

    assert found == [str(package / "columns" / "compiled_kernels")]


def test_what_is_interrupted_between_two_files_leaves_the_old_library(tmp_path, monkeypatch):
    """The manifest comes last, and what it named before stays until then."""
    monkeypatch.setattr(kept_code, "library_places", lambda: [tmp_path / "place"])
    code, manifest, never = tmp_path / "code", tmp_path / "manifest", tmp_path / "never written"
    code.write_bytes(b"code")
    manifest.write_text("{}")
    place = kept_code.keep({"small-1.so": code, "small.json": manifest}, old="small-*.so")

    with pytest.raises(OSError, match=r"kept nowhere: .*set NUMBA_CACHE_DIR"):
        kept_code.keep({"small-2.so": code, "small.json": never}, old="small-*.so")
    assert {file.name for file in place.iterdir()} == {"small-1.so", "small-2.so", "small.json"}

    kept_code.keep({"small-2.so": code, "small.json": manifest}, old="small-*.so")
    assert {file.name for file in place.iterdir()} == {"small-2.so", "small.json"}
