"""The preflight of a whole document: its source, and the sinks that can be asked."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from airflow_provider_deltaforge.errors import DeltaForgeError, RetryableError, WrongServerError
from airflow_provider_deltaforge.processors.contract import Processor
from airflow_provider_deltaforge.sensing.dynamic_keys import sketches
from airflow_provider_deltaforge.sinks.contract import Reachable, Sink
from airflow_provider_deltaforge.sources.contract import Finding
from airflow_provider_deltaforge.spec.document import Pipeline
from airflow_provider_deltaforge.spec.sensing import SchemaSensing
from airflow_provider_deltaforge.telemetry.redaction import redacted

_NAMED_MAX = 10


def preflight(pipeline: Pipeline) -> list[Finding]:
    """Ask the source whether it can be captured, and each sink whether it answers and takes us.

    So are the schema registries that encodings of sinks name, and the libraries of schema sensing.

    A sink that does not answer is a warning: the pipeline waits for it, and Spark's executors may
    reach what cannot be reached from here. Webhooks and files are not asked.

    Raises:
        RetryableError: the source is away.
    """
    sinks = pipeline.spec.sinks
    with ThreadPoolExecutor(len(sinks), thread_name_prefix="sink") as pool:
        asked = pool.map(partial(_asked, pipeline.name), sinks)
        found = list(pipeline.spec.source.preflight())
        found += _unmatched(pipeline, found)
        found += _judged("schema sensing", lambda: _sensing(pipeline.spec.schema_sensing))
        return [*found, *(finding for findings in asked for finding in findings)]


def _unmatched(pipeline: Pipeline, found: Sequence[Finding]) -> Iterator[Finding]:
    """Yield a warning for each processor whose patterns name columns that no table has."""
    processors = [processor for processor in pipeline.spec.processors if _names_columns(processor)]
    if not processors or any(finding.verdict == "fail" for finding in found):
        return  # What has to be mended first may be why columns are not seen.
    try:
        tables = pipeline.spec.source.describe()
    except DeltaForgeError as error:
        yield Finding("processors", "warn", redacted(f"columns cannot be checked: {error}"))
        return
    for processor in processors:
        patterns = list(processor.unmatched(tables))
        if patterns and tables:
            named = ", ".join(patterns[:_NAMED_MAX])
            yield Finding(
                f"processor {processor.id}",
                "warn",
                f"no column of a captured table fits {named}; check the spelling (parts are "
                "database or schema, table and column)",
                {"patterns": patterns},
            )


def _sensing(settings: SchemaSensing) -> Iterator[Finding]:
    """Yield that schema sensing has what it needs, if it is asked for."""
    if settings.enabled:
        if settings.high_cardinality.enabled:
            sketches()
        yield Finding("schema sensing", "ok", "its libraries are installed")


def _names_columns(processor: Processor) -> bool:
    return type(processor).unmatched is not Processor.unmatched


def _asked(pipeline: str, sink: Sink) -> list[Finding]:
    """Ask a sink, and the server that its encoding needs."""
    return [
        *_judged(f"sink {sink.id}", lambda: _reached(pipeline, sink)),
        *_judged(f"sink {sink.id} encoding", lambda: _encoding_reached(sink)),
    ]


def _judged(check: str, ask: Callable[[], Iterator[Finding]]) -> list[Finding]:
    try:
        return list(ask())
    except DeltaForgeError as error:
        here = isinstance(error.__cause__, ModuleNotFoundError)  # Not where the lane runs, perhaps.
        away = isinstance(error, RetryableError) and not isinstance(error, WrongServerError)
        verdict = "warn" if here or away else "fail"
        details = {"error_class": error.error_class}
        return [Finding(check, verdict, redacted(str(error)), details)]


def _encoding_reached(sink: Sink) -> Iterator[Finding]:
    if sink.encoding.reach(f"sink {sink.id}"):
        yield Finding(f"sink {sink.id} encoding", "ok", "the schema registry answers")


def _reached(pipeline: str, sink: Sink) -> Iterator[Finding]:
    writer = sink.open(pipeline)
    try:
        if isinstance(writer, Reachable):
            writer.reach()
            yield Finding(f"sink {sink.id}", "ok", "it answers, and takes us")
    finally:
        writer.close()
