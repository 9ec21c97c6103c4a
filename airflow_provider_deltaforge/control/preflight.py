"""The preflight of a whole document: its source, and the sinks that can be asked."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from airflow_provider_deltaforge.errors import DeltaForgeError, RetryableError
from airflow_provider_deltaforge.sinks.contract import Reachable, Sink
from airflow_provider_deltaforge.sources.contract import Finding
from airflow_provider_deltaforge.spec.document import Pipeline
from airflow_provider_deltaforge.telemetry.redaction import redacted


def preflight(pipeline: Pipeline) -> list[Finding]:
    """Ask the source whether it can be captured, and each sink whether it answers and takes us.

    A sink that does not answer is a warning: the pipeline waits for it, and Spark's executors may
    reach what cannot be reached from here. Webhooks and files are not asked.

    Raises:
        RetryableError: the source is away.
    """
    sinks = pipeline.spec.sinks
    with ThreadPoolExecutor(len(sinks), thread_name_prefix="sink") as pool:
        asked = pool.map(partial(_asked, pipeline.name), sinks)
        found = list(pipeline.spec.source.preflight())
        return [*found, *(finding for findings in asked for finding in findings)]


def _asked(pipeline: str, sink: Sink) -> list[Finding]:
    try:
        return list(_reached(pipeline, sink))
    except DeltaForgeError as error:
        here = isinstance(error.__cause__, ModuleNotFoundError)  # Not where the lane runs, perhaps.
        verdict = "warn" if here or isinstance(error, RetryableError) else "fail"
        told = {"error_class": error.error_class}
        return [Finding(f"sink {sink.id}", verdict, redacted(str(error)), told)]


def _reached(pipeline: str, sink: Sink) -> Iterator[Finding]:
    writer = sink.open(pipeline)
    try:
        if isinstance(writer, Reachable):
            writer.reach()
            yield Finding(f"sink {sink.id}", "ok", "it answers, and takes us")
    finally:
        writer.close()
