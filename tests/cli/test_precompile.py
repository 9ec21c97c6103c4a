"""``deltaforge precompile``; what it makes is used by drivers in tests/e2e/test_lean_drivers.py."""

import os
import subprocess
import sys

from airflow_provider_deltaforge.columns.compiled import manifest_suffix
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
