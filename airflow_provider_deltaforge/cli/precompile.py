"""``deltaforge precompile``: make the kernels' machine code, once for each installation."""

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from airflow_provider_deltaforge.cli.options import err, out
from airflow_provider_deltaforge.control.launching import class_archive, spark_submit
from airflow_provider_deltaforge.errors import DeltaForgeError, RetryableError

_PACKAGE = "airflow_provider_deltaforge"
_SHARED = "shared"
_SAMPLES: Mapping[str, Sequence[str]] = {
    "mysql": ("sources.mysql.precompile:precompile",),
    "postgres": ("sources.postgres.precompile:precompile",),
    _SHARED: (
        "sources.shared.precompile:precompile_shared",
        "columns.json_fields:precompile",
        "columns.json_compare_kernel:precompile",
        "processors.precompile:precompile",
        "processors.javascript.number_scan_kernel:precompile",
        "sensing.data_drift.detector:precompile",
        "sensing.structures:precompile",
    ),
}
"""What runs the kernels of each library with a few rows."""


def precompile() -> None:
    """Compile the kernels of sources and processors, once for each installation.

    Run it wherever drivers run: in an image, an archive for a cluster, on a server. With a C
    compiler it makes libraries, which start a pipeline half a second of a core sooner and in 100
    MiB less than kernels that are compiled, or read from a cache, by the pipeline itself. They lie
    in NUMBA_CACHE_DIR if that is set, else beside the package, else in the user's cache directory,
    and work on any processor of the architecture. With Spark and Java it also keeps the classes
    that Spark's JVM loads: a driver on Spark starts in a third less time.
    """
    began = time.monotonic()
    at_once = min(len(_SAMPLES), psutil.cpu_count() or 1)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with (
        ProcessPoolExecutor(at_once, get_context("spawn")) as pool,
        Progress(*columns, TimeElapsedColumn(), console=err, transient=True) as bars,
    ):
        try:
            _each(pool, bars, "compiling kernels", _sampled)
            made = _each(pool, bars, "making libraries", _library)
        except BrokenProcessPool as error:
            raise RetryableError(
                f"a compiler ended before its time; {at_once} at once take up to half a GiB each, "
                "and what was compiled is kept: give it more memory and call it again"
            ) from error
        spark = _spark_archive(bars)
    missing = {reason for _, reason in made if reason}
    for reason in missing:
        err.print(f"compiled by numba only: {reason}", highlight=False)
    for file in sorted(str(file) for file in (*(file for file, _ in made), spark) if file):
        out.print(file, highlight=False, soft_wrap=True)
    err.print(f"kernels are compiled ({time.monotonic() - began:.0f} s)", highlight=False)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(rich_help_panel="Running pipelines")(precompile)


def _each(pool: Executor, bars: Progress, what: str, work: Callable[[str], Any]) -> list[Any]:
    working = as_completed([pool.submit(work, library) for library in _SAMPLES])
    return [done.result() for done in bars.track(working, total=len(_SAMPLES), description=what)]


def _sampled(library: str) -> None:
    """Compile a library's kernels with numba, which keeps them."""
    for place in _SAMPLES[library]:
        module, _, function = place.partition(":")
        getattr(import_module(f"{_PACKAGE}.{module}"), function)()


def _library(name: str) -> tuple[Path | None, str]:
    """Make a library; return its manifest, or why there is none."""
    from airflow_provider_deltaforge.columns import compiled
    from airflow_provider_deltaforge.columns.library_builder import build

    with compiled.recorded() as calls:
        # Sources call shared kernels in their own ways.
        for library in _SAMPLES if name == _SHARED else (name,):
            _sampled(library)
    try:
        return build(name, [call for call in calls if _library_of(call[0].name) == name]), ""
    except (DeltaForgeError, OSError) as error:
        return None, str(error)


def _spark_archive(bars: Progress) -> Path | None:
    """Keep the classes of Spark's JVM, where Spark and Java are installed."""
    home = spark_submit.spark_home()
    if home is None or not (shutil.which("java") or os.environ.get("JAVA_HOME")):
        return None
    bars.add_task("running Spark once", total=None)
    try:
        return class_archive.make(home, spark_submit.JAVA_OPTIONS)
    except (DeltaForgeError, OSError) as error:
        err.print(f"Spark's classes are not kept: {error}", highlight=False)
        return None


def _library_of(kernel: str) -> str:
    for name in _SAMPLES:
        if kernel.startswith(f"{_PACKAGE}.sources.{name}."):
            return name
    return _SHARED
