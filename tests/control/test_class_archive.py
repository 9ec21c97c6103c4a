"""Spark's classes are kept, and used by a JVM that they fit."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from airflow_provider_deltaforge.control.launching import class_archive, spark_submit


@pytest.fixture(autouse=True)
def kept_in(tmp_path, monkeypatch):
    """A directory for archives that comes first."""
    place = tmp_path / "kept kernels"
    place.mkdir()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(place))
    monkeypatch.delenv("JDK_JAVA_OPTIONS", raising=False)
    return place


def loaded(options, log):
    """Return from where a JVM of Spark, with such options, took its classes."""
    home = spark_submit.spark_home()
    done = subprocess.run(
        [home / "bin" / "spark-submit", "--version"],
        env={
            **os.environ,
            "SPARK_HOME": str(home),
            "JDK_JAVA_OPTIONS": f"{options} -Xlog:class+load:file={log}",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert "version 4." in done.stderr
    classes = [line for line in log.read_text().splitlines() if "org.apache.spark.deploy" in line]
    assert classes
    words = [line for line in done.stderr.splitlines() if not line.startswith("NOTE: Picked up")]
    return {line.rpartition("source: ")[2] for line in classes}, words


@pytest.fixture
def archive(kept_in, monkeypatch):
    """What setting up has made, where this test may damage it."""
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    [option, _] = class_archive.options(spark_submit.spark_home())
    made = Path(option.partition("=")[2].strip('"'))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(kept_in))
    return Path(shutil.copy(made, kept_in))


@pytest.mark.spark
def test_kept_classes_are_used_until_they_are_damaged(archive, tmp_path):
    sources, words = loaded(spark_submit.java_options(), tmp_path / "log")
    assert "shared objects file (top)" in sources
    assert not any(source.startswith("file:") for source in sources)
    # Another JVM, such as that which only finds out the command line, has other classes.
    assert not any("[cds]" in line or "archive" in line for line in words)

    # A file of the right length that is none, and one of a release to come.
    size = archive.stat().st_size
    archive.unlink()
    archive.write_bytes(bytes(size))
    sources, words = loaded(spark_submit.java_options(), tmp_path / "log")
    assert "shared objects file (top)" not in sources
    assert not any("[cds]" in line or "archive" in line for line in words)


def test_an_archive_that_was_cut_off_is_left_aside(kept_in, tmp_path):
    home = tmp_path / "spark"
    name = class_archive._name(home)
    (kept_in / f"{name}-9.jsa").write_bytes(bytes(8))
    assert class_archive.options(home) == ()

    (kept_in / f"{name}-8.jsa").write_bytes(bytes(8))
    assert class_archive.options(home) == (
        f'"-XX:SharedArchiveFile={kept_in}/{name}-8.jsa"',
        "-Xlog:cds*=off",
    )
    assert class_archive.options(tmp_path / "another") == ()
    assert class_archive.options(None) == ()


def test_the_users_own_options_come_last(monkeypatch):
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=4")

    assert spark_submit.java_options().endswith(" -XX:TieredStopAtLevel=4")


def test_a_spark_that_does_not_start_is_named(tmp_path):
    with pytest.raises(class_archive.ArchiveError, match=r"Spark could not be started: .*no spark"):
        class_archive.make(tmp_path / "no spark", "")
