"""Senses the schemas of change events, batch by batch, as sinks receive them.

Which rows are looked at is decided by counting, before any is parsed. The row as a whole has one
schema, each of its JSON columns another. Sensing never raises, and takes a share of the time only:
rows that come while it is over that are passed over.
"""

import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.columns import json_fields
from airflow_provider_deltaforge.columns.value_codes import combinations
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.events.table_names import qualified_name
from airflow_provider_deltaforge.sensing import structures
from airflow_provider_deltaforge.sensing.dynamic_keys import sketches
from airflow_provider_deltaforge.sensing.learner import SchemaLearner
from airflow_provider_deltaforge.sensing.row_samples import TABLE_NAMES, RowSample, images_of
from airflow_provider_deltaforge.spec.patterns import TableMatcher
from airflow_provider_deltaforge.spec.sensing import SchemaSensing, SensingNames
from airflow_provider_deltaforge.storage.records.measurements import SensingCounts
from airflow_provider_deltaforge.storage.records.sensing import SensedTable
from airflow_provider_deltaforge.telemetry.logs import SeveralLines

Schemas = Callable[[str, "str | None", str, "str | None"], "TableSchema | None"]
"""Finds a table by database, schema, name and ``schema_version``."""

_TEXT_BYTES_MAX = 1 << 20
_SHARE = 0.2
_BURST_S = 5.0
_JSON_TYPES = frozenset(("json", "jsonb", "hstore"))
_TEXT_TYPES = frozenset(
    ("", "text", "tinytext", "mediumtext", "longtext", "varchar", "character varying", "clob")
)
_CONTAINERS = (b"{", b"[")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Plan:
    """How the rows of one version of a table are looked at."""

    columns: frozenset[str] = frozenset()
    """All that the catalog knows."""
    opaque: frozenset[str] = frozenset()
    """Those that the row's own schema does not look into."""
    json: tuple[str, ...] = ()
    """Those of JSON that have a schema of their own."""
    texts: tuple[str, ...] = ()
    """Those of text that may hold JSON."""


@dataclass(slots=True)
class _Entry:
    """A schema that is learned, and what was written of it."""

    learner: SchemaLearner
    counts: SensingCounts = field(default_factory=SensingCounts)
    """Since this process began."""
    written: tuple[int, int, int] = (0, 0, 0)
    written_s: float = float("-inf")

    @property
    def state(self) -> tuple[int, int, int]:
        """Return the numbers that change when there is something to write."""
        record = self.learner.record
        return record.sequence, record.sampled + record.unreadable, record.event_count


class _Table:
    """One table: its row's schema, and those of its JSON columns."""

    def __init__(self, rows: _Entry) -> None:
        self.rows = rows
        self.columns: dict[str, _Entry] = {}
        self.plans: dict[str | None, _Plan] = {}
        self.no_json: set[str] = set()
        self.waits = True
        """A column that may hold JSON has not shown a value yet."""

    @property
    def entries(self) -> list[_Entry]:
        """Return all its schemas."""
        return [self.rows, *self.columns.values()]

    def is_done(self) -> bool:
        """Return whether none of its schemas learns any more."""
        return not self.waits and all(e.learner.record.stabilized for e in self.entries)


class SchemaSensor:
    """Holds the sensed schemas of one pipeline. Every method may be called from any thread.

    Args:
        settings: ``spec.schema_sensing``, enabled.
        tenant: of the pipeline.
        schemas: finds what the catalog says of a table.
        known: the records that are stored.
        clock: seconds that only ever grow.
        cost: seconds of work of the calling thread.

    Raises:
        SpecError: a library that the settings need is not installed.
    """

    def __init__(
        self,
        settings: SchemaSensing,
        tenant: str,
        schemas: Schemas,
        known: Iterable[SensedTable] = (),
        clock: Callable[[], float] = time.perf_counter,
        cost: Callable[[], float] = time.thread_time,
    ) -> None:
        self._settings, self._tenant, self._schemas = settings, tenant, schemas
        self._clock, self._cost = clock, cost
        self._lock = threading.Lock()
        self._tables: dict[tuple[str, str], _Table | None] = {}
        self._known = {record.name: record for record in known}
        self._tables_matcher = _Names(settings.tables)
        self._credit_s, self._seen_s = _BURST_S, clock()
        self._broken = False
        if settings.high_cardinality.enabled:
            sketches()
        structures.precompile()

    def observe(self, rows: pa.RecordBatch) -> float:
        """Take note of change events; return the seconds that it took."""
        began = self._clock()
        self._guarded(partial(self._observe, rows))
        return self._clock() - began

    def observe_samples(self, samples: Iterable[RowSample]) -> None:
        """Take note of rows that were delivered elsewhere; all that were chosen are looked at."""
        for sample in samples:
            self._guarded(partial(self._observe_sample, sample))

    def counts(self) -> dict[str, SensingCounts]:
        """Return what was counted since this process began, by table and JSON column."""
        with self._lock:
            return {
                entry.learner.record.name: entry.counts.model_copy(deep=True)
                for entry in self._entries()
            }

    def dynamic_maps(self) -> int:
        """Return how many places are maps."""
        with self._lock:
            return sum(entry.learner.dynamic_maps for entry in self._entries())

    def unwritten(
        self, quiet_s: float, counted_s: float, limit: int | None = None
    ) -> list[tuple[Any, SensedTable]]:
        """Return copies of the records that are to be written, each behind what ``wrote`` takes.

        Args:
            quiet_s: a schema that is the same was not written for so long.
            counted_s: the same for one that learned nothing, and only counted events.
            limit: so many at most; events wait while records are copied.
        """
        now, found = self._clock(), []
        with self._lock:
            for entry in self._entries():
                state, since_s = entry.state, now - entry.written_s
                if state == entry.written:
                    continue
                is_same = state[0] == entry.written[0]
                waits_s = counted_s if state[:2] == entry.written[:2] else quiet_s
                if is_same and since_s < waits_s:
                    continue
                found.append(((entry, state), entry.learner.stored().model_copy(deep=True)))
                if len(found) == limit:
                    break
        return found

    def wrote(self, tokens: Iterable[Any]) -> None:
        """Note that records are durable."""
        with self._lock:
            for entry, state in tokens:
                entry.written, entry.written_s = state, self._clock()

    def _guarded(self, observe: Callable[[], None]) -> None:
        """Observe something, on the account of the time that sensing may take."""
        worked = self._cost()
        try:
            with self._lock:
                now = self._clock()
                earned = (now - self._seen_s) * _SHARE
                self._credit_s, self._seen_s = min(self._credit_s + earned, _BURST_S), now
                observe()
        except Exception as error:  # noqa: BLE001 - delivery goes on without what is learned
            if not self._broken:
                self._broken = True
                # Its text may quote a row's values.
                frames = "".join(traceback.format_list(traceback.extract_tb(error.__traceback__)))
                places = SeveralLines(f"\n{frames}")
                _log.error("schema sensing failed with %s at:%s", type(error).__name__, places)
        self._credit_s -= self._cost() - worked

    def _observe_sample(self, sample: RowSample) -> None:
        db, schema, name = sample.table
        table = self._table(schema or db, name)
        if table is None:
            return
        self._count(table, sample.events, int(time.time() * 1000))
        if table.is_done() or not sample.texts:
            return
        if self._credit_s <= 0:
            table.rows.learner.record.passed_over += len(sample.texts)
        else:
            plan = self._plan(table, sample.table, sample.version)
            texts = pa.array(sample.texts, pa.binary())
            self._look(table, plan, texts, sample.events)

    def _observe(self, rows: pa.RecordBatch) -> None:
        after = rows.column("after")
        there = np.flatnonzero(np.asarray(after.is_valid()))
        if not len(there):
            return
        codes, tables = combinations([rows.column(name) for name in TABLE_NAMES])
        codes = codes[there]
        counts = np.bincount(codes, minlength=len(tables))
        order: Any = None
        ends = np.cumsum(counts)
        now_ms = int(time.time() * 1000)
        for ordinal in np.flatnonzero(counts).tolist():
            db, schema, name, version = tables[ordinal]
            table = self._table(schema or db, name)
            if table is None:
                continue
            due = self._due(table, int(counts[ordinal]), now_ms)
            if not len(due):
                continue
            if order is None:
                order = there[np.argsort(codes, kind="stable")]
            picked = order[ends[ordinal] - counts[ordinal] + due]
            plan = self._plan(table, (db, schema, name), version)
            self._look(table, plan, images_of(rows, after, picked), int(counts[ordinal]))

    def _table(self, qualifier: str, name: str) -> _Table | None:
        """Return what is known of a table; None if it is left out."""
        if (qualifier, name) in self._tables:
            return self._tables[qualifier, name]
        table = None
        if self._tables_matcher.takes(qualifier, name):
            full_name = qualified_name(qualifier, name)
            table = _Table(self._entry(full_name, None))
            for record in list(self._known.values()):
                if record.table == full_name and record.column is not None:
                    table.columns[record.column] = self._entry(full_name, record.column)
        self._tables[qualifier, name] = table
        return table

    def _entry(self, table: str, column: str | None) -> _Entry:
        now_ms = int(time.time() * 1000)
        record = SensedTable(
            tenant=self._tenant, table=table, column=column, first_seen_ms=now_ms,
            last_seen_ms=now_ms,
        )  # fmt: skip
        known = self._known.pop(record.name, None)
        entry = _Entry(SchemaLearner(self._settings, known or record))
        if known is not None:
            entry.written, entry.written_s = entry.state, self._clock()
        return entry

    def _due(self, table: _Table, count: int, now_ms: int) -> Any:
        """Count a table's rows; return which of them are to be looked at."""
        sampling, record = self._settings.sampling, table.rows.learner.record
        start = record.event_count
        self._count(table, count, now_ms)
        nothing = np.zeros(0, np.int64)
        if table.is_done():
            return nothing
        left = 0 if record.stabilized else sampling.warmup_events - record.sampled
        warm = min(count, max(0, left))
        first = warm + -(start + warm) % sampling.sample_rate
        if not warm and first >= count:
            return nothing
        due = np.concatenate([np.arange(warm), np.arange(first, count, sampling.sample_rate)])
        if self._credit_s > 0:
            return due
        for entry in table.entries:
            entry.learner.record.passed_over += len(due)
        return nothing

    def _count(self, table: _Table, count: int, now_ms: int) -> None:
        for entry in table.entries:
            entry.learner.record.event_count += count
            entry.learner.record.last_seen_ms = now_ms
            entry.counts.events += count

    def _plan(self, table: _Table, name: tuple[str, str | None, str], version: str | None) -> _Plan:
        known = table.plans.get(version)
        if known is not None:
            return known
        schema = self._schemas(*name, version)
        plan = _Plan()
        if schema is not None:
            deep = self._settings.deep_inspect
            qualifier, chosen = name[1] or name[0], _Names(deep.columns)
            columns = {column.name: column.data_type.lower() for column in schema.columns}
            mine = [
                column
                for column in columns
                if deep.enabled and chosen.takes_column(qualifier, name[2], column)
            ]
            plan = _Plan(
                frozenset(columns),
                frozenset(c for c in columns if columns[c] in _JSON_TYPES or c not in mine),
                tuple(column for column in mine if columns[column] in _JSON_TYPES),
                tuple(column for column in mine if columns[column] in _TEXT_TYPES),
            )
        table.plans[version] = plan
        return plan

    def _look(self, table: _Table, plan: _Plan, texts: pa.BinaryArray, events: int) -> None:
        """Look at rows of a table; they stand for so many events."""
        lengths = np.asarray(pc.binary_length(texts))
        if lengths.max(initial=0) > _TEXT_BYTES_MAX:
            table.rows.learner.record.unreadable += int((lengths > _TEXT_BYTES_MAX).sum())
            texts = texts.take(pa.array(np.flatnonzero(lengths <= _TEXT_BYTES_MAX)))
        if not len(texts):
            return
        rows = table.rows
        if not rows.learner.record.stabilized:
            rows.learner.guide(plan.columns, plan.opaque)
            self._learn(rows, texts)
        wanted = [
            name
            for name in (*plan.json, *plan.texts)
            if name not in table.no_json and not self._is_done(table, name)
        ]
        spans = json_fields.locate_each(texts, [[name] for name in wanted])
        for name, places in zip(wanted, spans, strict=True):
            values = self._json_of(table, name, texts, places, decoded=name in plan.texts)
            if values is None or not len(values):
                continue
            entry = table.columns.get(name)
            if entry is None:
                entry = table.columns[name] = self._entry(rows.learner.record.table, name)
                entry.learner.record.event_count = entry.counts.events = events
            self._learn(entry, values)
        table.waits = any(
            name not in table.columns and name not in table.no_json
            for name in (*plan.json, *plan.texts)
        )

    def _is_done(self, table: _Table, name: str) -> bool:
        entry = table.columns.get(name)
        return entry is not None and entry.learner.record.stabilized

    def _json_of(
        self, table: _Table, name: str, texts: pa.BinaryArray, spans: Any, *, decoded: bool
    ) -> pa.BinaryArray | None:
        """Return the values of a column but for NULLs; None for a text column without JSON."""
        kinds = json_fields.kinds(texts, spans)
        there = kinds > json_fields.NULL
        if not there.any():
            return None
        values = json_fields.values(texts, spans).filter(pa.array(there))
        is_text = kinds[there] == json_fields.STRING
        if is_text.any():  # Where the database keeps JSON as text, too, it comes as a string.
            inner = json_fields.as_text(values).cast(pa.binary())
            begins = pc.binary_slice(inner, 0, 1)
            holds = pc.and_(pc.is_in(begins, pa.array(_CONTAINERS, pa.binary())), pa.array(is_text))
            holds = pc.and_(holds, pa.array(structures.StructureNumbers(0).of(inner) != 0))
            values = pc.if_else(holds, inner, values)
            if decoded and name not in table.columns and holds.false_count:
                table.no_json.add(name)
                return None
        return values

    def _learn(self, entry: _Entry, texts: pa.BinaryArray) -> None:
        record = entry.learner.record
        former = record.sequence, record.cache_hits, record.cache_misses, record.drifted
        count, began = len(texts), self._clock()
        entry.learner.learn(texts)
        counts = entry.counts
        counts.evolutions += max(0, record.sequence - max(1, former[0]))
        counts.cache_hits += record.cache_hits - former[1]
        counts.cache_misses += record.cache_misses - former[2]
        if self._settings.tracking.detect_drift:
            counts.drifted += record.drifted - former[3]
        counts.measure(count, self._clock() - began)

    def _entries(self) -> list[_Entry]:
        return [
            entry
            for table in self._tables.values()
            if table is not None
            for entry in table.entries
            if entry.learner.record.sequence
        ]


class _Names:
    """Names that are taken, and names that are left out, which counts more."""

    def __init__(self, settings: SensingNames) -> None:
        self._settings = settings
        self._include = TableMatcher(settings.include)
        self._exclude = TableMatcher(settings.exclude)

    def takes(self, qualifier: str, table: str) -> bool:
        """Return whether a table is taken."""
        left_out = bool(self._settings.exclude) and self._exclude.matches(qualifier, table)
        return not left_out and self._include.matches(qualifier, table)

    def takes_column(self, qualifier: str, table: str, column: str) -> bool:
        """Return whether a column is taken; patterns are ``column`` or ``[db.]table.column``."""

        def matches(pattern: str) -> bool:
            tables, _, own = pattern.rpartition(".")
            if tables and not TableMatcher((tables,)).matches(qualifier, table):
                return False
            return TableMatcher((own,)).matches("", column)

        if any(map(matches, self._settings.exclude)):
            return False
        return not self._settings.include or any(map(matches, self._settings.include))
