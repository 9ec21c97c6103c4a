"""Spark's classes as a JVM has them in memory, so that the next one need not load them anew.

More than half of what a driver's JVM does at its start is reading and checking Spark's classes.
``deltaforge precompile`` lets one application run and keeps what it loaded (Java's *class data
sharing*, Java 13 and later; 150 MB). A JVM checks itself whether an archive is of its release and
its jars, and starts without it where it is not. It dies of a file that was cut off, so the name
holds the size.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from airflow_provider_deltaforge.columns.kept_code import keep, library_places
from airflow_provider_deltaforge.errors import DeltaForgeError

_TRAINING = Path(__file__).parents[2] / "engine" / "spark" / "training.py"
_LIMIT_S = 300.0
_WORDS = 500


class ArchiveError(DeltaForgeError):
    """Spark's classes could not be kept."""


def options(home: Path | None) -> Sequence[str]:
    """Return the words by which a JVM uses the archive of a Spark, if there is one.

    Args:
        home: of Spark.
    """
    if home is None:
        return ()
    for place in library_places():
        for file in place.glob(f"{_name(home)}-*.jsa"):
            with suppress(OSError):
                if file.stem.rpartition("-")[2] == str(file.stat().st_size):
                    # Without an archive that fits it starts as well, and need not say so.
                    return (_word(f"-XX:SharedArchiveFile={file}"), "-Xlog:cds*=off")
    return ()


def make(home: Path, java_options: str) -> Path:
    """Run a small application, and keep the classes that it loaded.

    Args:
        home: of Spark.
        java_options: of drivers.

    Returns:
        The archive.

    Raises:
        ArchiveError: the application failed.
        OSError: no place can be written.
    """
    with tempfile.TemporaryDirectory(prefix="deltaforge-classes-") as made:
        archive = Path(made) / "spark.jsa"
        option = _word(f"-XX:ArchiveClassesAtExit={archive}")
        _run(home, f"{java_options} {option} -Xlog:cds*=off")
        name = f"{_name(home)}-{archive.stat().st_size}.jsa"
        return keep({name: archive}, old=f"{_name(home)}-*.jsa") / name


def _word(option: str) -> str:
    """Return an option as a word of ``JDK_JAVA_OPTIONS``."""
    return f'"{option}"' if any(letter.isspace() for letter in option) else option


def _name(home: Path) -> str:
    return f"spark-{hashlib.sha256(str(home).encode()).hexdigest()[:16]}"


def _run(home: Path, java_options: str) -> None:
    submit = [str(home / "bin" / "spark-submit"), "--master", "local[2]"]
    settings = ("spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1")
    try:
        done = subprocess.run(  # noqa: S603 - Spark's own command
            [*submit, *(word for each in settings for word in ("--conf", each)), str(_TRAINING)],
            env={
                **os.environ,
                "SPARK_HOME": str(home),
                "PYSPARK_PYTHON": sys.executable,
                "PYSPARK_DRIVER_PYTHON": sys.executable,
                "JDK_JAVA_OPTIONS": java_options,
            },
            timeout=_LIMIT_S,
            capture_output=True,
            text=True,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ArchiveError(f"Spark could not be started: {error}") from error
    if done.returncode != 0:
        raise ArchiveError(f"Spark could not be started: {done.stderr.strip()[-_WORDS:]}")
