"""``spark.readStream.format("deltaforge")``: a source's change events as a DataFrame.

For Spark users who query, join or write changes to a lake. Here Spark's checkpoint is the truth:
an offset is a complete position in the log, a micro-batch is read again exactly, so a sink that
commits by batch id (Parquet, Delta, Iceberg) holds every event exactly once. Sinks, batch and
commit settings of a document belong to ``deltaforge run``; its source and processors count here,
and an event that a processor refuses fails the query.

    from airflow_provider_deltaforge.engine.spark.source import register
    register(spark)
    changes = spark.readStream.format("deltaforge").option("path", "orders.yaml").load()

Options:
    path, document, source: one of them; a file with a pipeline document, its text, or the text of
        its ``spec.source`` block. ``${VAR}`` is resolved in each process that opens the log.
    startingPosition: ``latest``, or a position as JSON; only for a query without a checkpoint.
    maxEventsPerTrigger, maxBytesPerTrigger: what a micro-batch may hold (64 MiB of log without
        either); it holds whole transactions, at least one.
    reader: tells queries apart that read one source at the same time (``spark``).
"""

import json
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from airflow_provider_deltaforge.columns.binary_columns import uuid_texts
from airflow_provider_deltaforge.engine.base.processor_stats import ProcessorStats
from airflow_provider_deltaforge.engine.render.refusals import stop_for_processors
from airflow_provider_deltaforge.engine.render.render_stage import chain_of
from airflow_provider_deltaforge.engine.spark.frontier import (
    BatchLimit,
    Frontier,
    between,
    retry,
)
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.sources.contract import Source
from airflow_provider_deltaforge.spec.document import Pipeline
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.spec.yaml_text import parse
from airflow_provider_deltaforge.telemetry.redaction import redacted

_log = logging.getLogger(__name__)

FORMAT = "deltaforge"
_MAX_BYTES = 64 * 1024 * 1024
_DOCUMENT_OPTIONS = ("path", "document", "source")
_OPTIONS = (
    *_DOCUMENT_OPTIONS,
    "reader",
    *("startingposition", "maxeventspertrigger", "maxbytespertrigger"),
)
_URL_PASSWORD = re.compile(r"[A-Za-z][\w+.-]*://[^\s:/@]*:(?P<password>[^\s@]+)@")
_SECRET_KEY = re.compile(r"password|passwd|secret|token|api_?key", re.IGNORECASE)
_REFERENCES = re.compile(r"(\$\{[A-Za-z_][A-Za-z0-9_]*(:-)?\})+")
FRAME_SCHEMA = """
    op string, db string, schema string, table string,
    before string, after string, key string,
    ts_ms bigint, tx_id string, tx_row int, tx_end boolean,
    event_id string, position string,
    schema_version string, schema_sequence bigint, ddl string
"""
"""Row images, keys and ``ddl`` are JSON text; ``position`` is the event's place in the log as a
JSON object; ``event_id`` a UUID, the same on every replay; ``ts_ms`` ms since epoch, UTC."""

_TEXTS = ("op", "db", "schema", "table")
_JSON = ("before", "after", "key")


def register(spark: SparkSession) -> None:
    """Make ``format("deltaforge")`` known to a session."""
    spark.dataSource.register(ChangeSource)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options, checked. Picklable; it holds ``${VAR}``, never a value.

    Attributes:
        document: a pipeline document, unexpanded.
        start: where a new query begins; None: at the head of the log.
        limit: what a micro-batch may hold.
        reader: part of the server id, so that readers of one source differ.
    """

    document: str
    start: Position | None
    limit: BatchLimit
    reader: str

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "SourceOptions":
        """Check options, whose names Spark gives in any case.

        Raises:
            SpecError: an option is unknown or wrong; the text names it.
        """
        values = {name.lower(): value for name, value in options.items()}
        unknown = sorted(set(values) - set(_OPTIONS))
        if unknown:
            raise SpecError(f"unknown option {unknown[0]!r} (known: {', '.join(_OPTIONS)})")
        events = _positive(values, "maxEventsPerTrigger")
        nbytes = _positive(values, "maxBytesPerTrigger")
        if events is None and nbytes is None:
            nbytes = _MAX_BYTES
        start = _starting(values.get("startingposition", "latest"))
        reader = values.get("reader", "spark")
        return cls(_document_of(values), start, BatchLimit(events, nbytes), reader)


class ChangeSource(DataSource):
    """The data source; see the module."""

    @classmethod
    def name(cls) -> str:
        """Return what ``format`` takes."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns, and refuse wrong options before a query starts."""
        SourceOptions.of(self.options)
        return FRAME_SCHEMA

    def streamReader(self, schema: Any) -> "ChangeReader":  # noqa: N802 - Spark's name
        """Return the reader; Spark pickles it."""
        return ChangeReader(SourceOptions.of(self.options))


class ChangeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches in one process and reads them in others; opens nothing when made."""

    def __init__(self, settings: SourceOptions) -> None:
        self._settings = settings
        self._source: Source | None = None
        self._frontier: Frontier | None = None
        self._target: Position | None = None
        self._fresh: dict[str, str] | None = None

    def initialOffset(self) -> dict[str, str]:  # noqa: N802 - Spark's name
        """Return where a query without a checkpoint begins."""
        if self._settings.start is not None:
            return _offset(self._settings.start)
        self._fresh = _offset(retry(self._described().beginning))
        return self._fresh

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, str], limit: ReadLimit
    ) -> dict[str, str]:
        """Return the end of the next micro-batch; ``start`` when there is nothing to read."""
        if start == self._fresh:
            # Spark asks for the initial offset again if the first micro-batch did not finish, and
            # the head has moved by then. So the first one is empty: it only stores the position.
            self._fresh = None
            return start
        source = self._described()
        if self._frontier is None:
            self._frontier = Frontier(source)
        target = self._target
        if target is None and isinstance(limit, ReadAllAvailable):
            target = retry(source.head)
        end = self._frontier.advance(_position(start), self._limit(limit), target)
        return start if end is None else _offset(end)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit of the options; Spark carries one kind at a time."""
        limit = self._settings.limit
        if limit.events is not None:
            return ReadMaxRows(limit.events)
        return ReadMaxBytes(limit.nbytes or _MAX_BYTES)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Remember the head: the query ends there."""
        self._target = retry(self._described().head)

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> list[InputPartition]:
        """Return the one range: the log has one order."""
        # A first micro-batch that is run again may begin behind its end; it held nothing.
        if self._described().compare(_position(start), _position(end)) >= 0:
            return []
        return [InputPartition((_position(start), _position(end)))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield exactly the events of a range, as Arrow batches."""
        start, end = partition.value
        pipeline = self._pipeline()
        chain = chain_of(pipeline, ProcessorStats(), _Log(), lambda: False)
        try:
            chain.open()
            for rows in between(self._beside(pipeline.spec.source, once=True), start, end):
                processed = chain.process(rows)
                stop_for_processors(processed, rows, instead="")
                if processed.rows.num_rows:
                    yield _frame_of(processed.rows)
        finally:
            chain.close()

    def commit(self, end: dict[str, str]) -> None:
        """Acknowledge to the server what Spark has finished."""
        if self._frontier is not None:
            self._frontier.acknowledge(_position(end))

    def stop(self) -> None:
        """Close the connection."""
        if self._frontier is not None:
            self._frontier.close()

    def _described(self) -> Source:
        if self._source is None:
            self._source = self._beside(self._pipeline().spec.source)
        return self._source

    def _pipeline(self) -> Pipeline:
        """Load the document with this process's environment."""
        pipeline = load(self._settings.document)
        pipeline.refuse_unbuilt()
        return pipeline

    def _beside(self, source: Source, *, once: bool = False) -> Source:
        """Return the source as one more reader, beside the pipeline.

        Args:
            source: the pipeline's.
            once: for a task, which reads a micro-batch beside the planner.
        """
        return source.beside(self._settings.reader, once=once)

    def _limit(self, limit: ReadLimit) -> BatchLimit:
        """Return what Spark asks for; ``availableNow`` and triggers that wait ask for ours."""
        if isinstance(limit, ReadAllAvailable):
            return BatchLimit()
        if isinstance(limit, ReadMaxRows):
            return BatchLimit(limit.max_rows, self._settings.limit.nbytes)
        if isinstance(limit, ReadMaxBytes):
            return BatchLimit(self._settings.limit.events, limit.max_bytes)
        return self._settings.limit

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_source": None, "_frontier": None}


class _Log:
    """Logs a processor's errors where nobody asks for a status."""

    def report_processor_error(self, processor_id: str, error: BaseException | None) -> None:
        """Log an attempt that failed; see ``ProcessorWatcher``."""
        if error is not None:
            _log.warning("processor %s: %s", processor_id, redacted(str(error)))


def _offset(position: Position) -> dict[str, str]:
    """Return a position as Spark stores it: text, since Spark takes no lists."""
    return {"position": json.dumps(dict(position), sort_keys=True)}


def _position(offset: Mapping[str, str]) -> Position:
    position: dict[str, Any] = json.loads(offset["position"])
    return position


def _positive(values: Mapping[str, str], name: str) -> int | None:
    text = values.get(name.lower())
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise SpecError(f"option {name!r}: {text!r} is not a positive whole number")
    return int(text)


def _starting(text: str) -> Position | None:
    if text == "latest":
        return None
    try:
        position = json.loads(text)
    except ValueError:
        position = None
    if not isinstance(position, dict) or not position:
        raise SpecError("option 'startingPosition': write 'latest', or a position as JSON")
    return position


def _document_of(options: Mapping[str, str]) -> str:
    """Return the pipeline document that the options name, variables unexpanded.

    Args:
        options: exactly one of ``path`` (a file on this machine), ``document`` (its text) or
            ``source`` (only the ``spec.source`` block, as YAML).

    Raises:
        SpecError: none or several are given, the document is wrong or asks for what is not
            built, or an option, which Spark shows in plans, holds a password.
    """
    named = [name for name in _DOCUMENT_OPTIONS if options.get(name)]
    if len(named) != 1:
        raise SpecError(
            "name the log with exactly one option: 'path' or 'document' for a pipeline document, "
            f"or 'source' for its spec.source block (given: {', '.join(named) or 'none'})"
        )
    name = named[0]
    text = _read(options[name]) if name == "path" else options[name]
    if name != "path":
        _refuse_secrets(name, text)
    if name == "source":
        text = _around(text)
    load(text, expand=False, origin=f"option {name!r}").refuse_unbuilt()
    return text


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise SpecError(f"option 'path': {path}: cannot be read: {reason}") from error


def _around(text: str) -> str:
    """Make a pipeline of a source; the DataFrame stands in for its sinks."""
    source = parse(text).data
    if not isinstance(source, Mapping):
        raise SpecError("option 'source': write a map: {type: mysql, config: {…}}")
    if "snapshot" in (source.get("config") or {}):
        raise SpecError(
            "option 'source': config.snapshot: a DataFrame holds the log only; take it out"
        )
    document = {
        "apiVersion": "deltaforge/v1",
        "kind": "Pipeline",
        "metadata": {"name": "spark", "tenant": "spark"},
        "spec": {"source": source, "sinks": [{"type": "stdout", "config": {"id": "frame"}}]},
    }
    return json.dumps(document)


def _refuse_secrets(option: str, text: str) -> None:
    for key, value in _leaves(parse(text).data, ""):
        found = _URL_PASSWORD.search(value)
        password = found["password"] if found else None
        if password is None and _SECRET_KEY.search(key.rpartition(".")[2]):
            password = value
        if password and not _REFERENCES.fullmatch(password):
            raise SpecError(
                f"option {option!r}: {key}: holds a password, and Spark shows options in query "
                "plans; write ${VAR}, which is resolved where the connection is opened, or give "
                "the document as a file in option 'path'"
            )


def _leaves(data: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(data, Mapping):
        for name, value in data.items():
            yield from _leaves(value, f"{key}.{name}" if key else str(name))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from _leaves(value, f"{key}[{index}]")
    elif isinstance(data, str):
        yield key, data


def _frame_of(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return events of CHANGE_SCHEMA in the columns of FRAME_SCHEMA."""
    columns = {
        **{name: rows[name].cast(pa.utf8()) for name in _TEXTS},
        **{name: rows[name].cast(pa.utf8()) for name in _JSON},
        "ts_ms": rows["ts_ms"],
        "tx_id": rows["tx_id"].cast(pa.utf8()),
        "tx_row": rows["row"],
        "tx_end": rows["tx_end"],
        "event_id": uuid_texts(rows["event_id"]).cast(pa.utf8()),
        "position": _objects(rows["source_position"]),
        "schema_version": rows["schema_version"].cast(pa.utf8()),
        "schema_sequence": rows["schema_sequence"],
        "ddl": rows["ddl"].cast(pa.utf8()),
    }
    return pa.RecordBatch.from_pydict(columns)


def _objects(inside: pa.DictionaryArray) -> pa.StringArray:
    """Put braces around each distinct position, once, and spread them over the rows."""
    texts = inside.dictionary.cast(pa.utf8())
    objects = pc.binary_join_element_wise("{", texts, "}", "")
    return objects.take(inside.indices)
