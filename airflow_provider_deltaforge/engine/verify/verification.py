"""Compares a source's tables with what its pipeline's sinks hold, beside the running stream.

What sinks hold is read first, then the tables, in views that are opened behind that; then the end
of the log is noted, each sink's checkpoint is waited for to pass it, and what the sinks got
meanwhile is read. So a sink holds every change that a view shows. If the last message of a row was
in the sink before the view was opened, it is a change that the view shows, too, and nothing came
behind it: if the two differ, they differ. If it came later, the row was in motion, and is looked at
again in the same way, a few times.
"""

import logging
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.engine.verify.message_rows import VerifiedTable
from airflow_provider_deltaforge.engine.verify.options import (
    VerifyOptions,
    VerifyProgress,
    VerifyResult,
)
from airflow_provider_deltaforge.engine.verify.row_states import (
    DROPPED,
    Compared,
    StateFiles,
    compared,
    each_bucket,
    latest,
)
from airflow_provider_deltaforge.engine.verify.sink_rows import (
    HeldRow,
    MessageSink,
    RowKey,
    SinkRows,
    held_row,
    open_sink,
    why_unreadable,
    without_columns,
)
from airflow_provider_deltaforge.engine.verify.source_rows import UNVERIFIED, SourceRow, SourceRows
from airflow_provider_deltaforge.errors import (
    DeltaForgeError,
    FatalError,
    RetryableError,
    SpecError,
)
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.sources.contract import Source
from airflow_provider_deltaforge.spec.document import Pipeline
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.gaps import Gaps
from airflow_provider_deltaforge.storage.records.verifications import (
    SinkComparison,
    TableComparison,
)
from airflow_provider_deltaforge.telemetry.redaction import redacted

MISSING, EXTRA, DIFFERENT, INCONCLUSIVE = "missing", "extra", "different", "inconclusive"

_POLL_S = 0.1
_ROUND_PAUSE_S = 0.25
_READINGS_MAX = 3
_KEY_BYTES_MAX = 16 << 10
"""Longer ones, which no database has, are counted and not kept: sinks hold what anybody wrote."""
_NO_KEY = (
    "the table has no key, so its rows cannot be compared. Give it a PRIMARY KEY, or leave it out "
    "of the tables to verify"
)

_log = logging.getLogger(__name__)


def verify(
    pipeline: Pipeline,
    store: Store,
    options: VerifyOptions,
    progress: VerifyProgress,
    check: Callable[[], None],
) -> VerifyResult:
    """Verify a pipeline.

    Args:
        pipeline: the document, expanded.
        store: where its checkpoints are.
        options: how.
        progress: kept up to date.
        check: called often; raises to end it.

    Raises:
        SpecError: a table or sink is not there.
        DeltaForgeError: the source cannot be read.
    """
    with ExitStack() as stack:
        directory = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="deltaforge-verify-", dir=options.directory)
        )
        run = _Run(pipeline, store, options, progress, check, Path(directory), stack)
        return run.result()


@dataclass
class _SinkWork:
    """One sink while it is compared."""

    rows: SinkRows
    lag_s: float
    found: dict[int, TableComparison]
    moving: dict[RowKey, HeldRow] = field(default_factory=dict)
    steady: dict[RowKey, tuple[tuple[int | None, int | None], int]] = field(default_factory=dict)
    """What both sides held of a row that differed in the last look, and in how many in a row."""
    keys: dict[int, dict[str, list[str]]] = field(default_factory=dict)


class _Run:
    """One verification."""

    def __init__(
        self,
        pipeline: Pipeline,
        store: Store,
        options: VerifyOptions,
        progress: VerifyProgress,
        check: Callable[[], None],
        directory: Path,
        stack: ExitStack,
    ) -> None:
        self._pipeline, self._options, self._progress = pipeline, options, progress
        self._check, self._directory, self._stack = check, directory, stack
        self._source: Source = pipeline.spec.source
        self._checkpoints = Checkpoints(store, pipeline.name, self._source.id)
        self._given_up = Gaps(store, pipeline.name).open()
        self._results: dict[str, SinkComparison] = {}
        self._work: dict[str, _SinkWork] = {}
        self._source_files = StateFiles(directory / "source")

    def result(self) -> VerifyResult:
        sinks = self._chosen_sinks()
        readable = [sink.id for sink in sinks if self._results[sink.id].reason is None]
        self._rows = SourceRows(self._pipeline, readable, self._is_ending)
        self._stack.callback(self._rows.close)
        self._plan()
        for sink in sinks:
            if sink.id in readable:
                self._open(sink)
        if self._work and self._tables:
            self._read_all()
            self._compare()
            self._look_again()
        return self._concluded()

    def _is_ending(self) -> bool:
        try:
            self._check()
        except DeltaForgeError:
            return True
        return False

    def _chosen_sinks(self) -> Sequence[Any]:
        known = {sink.id: sink for sink in self._pipeline.spec.sinks}
        sinks = [known[name] for name in self._options.sinks or known]
        for sink in sinks:
            self._results[sink.id] = SinkComparison(sink=sink.id, reason=why_unreadable(sink))
        return sinks

    def _plan(self) -> None:
        """Choose the tables, and cut them into chunks."""
        self._chunks = self._rows.plan(self._options.tables)
        schemas = {schema.full_name: schema for schema in self._source.describe()}
        self._tables: list[VerifiedTable] = []
        self._refused: dict[str, str] = {}
        for name in list(self._chunks):
            self._check()
            schema = schemas.get(name)
            if schema is None or not schema.primary_key:
                self._refused[name] = _NO_KEY if schema is not None else "the table is gone"
                del self._chunks[name]
                continue
            table = VerifiedTable(len(self._tables), schema)
            self._tables.append(table)
            self._rows.place(schema, table.number)
        verified = {table.name for table in self._tables}
        for name, schema in schemas.items():
            if name not in verified:
                self._rows.place(schema, UNVERIFIED)
        self._progress.total = sum(len(chunks) for chunks in self._chunks.values())

    def _open(self, sink: Any) -> None:
        if sink.id in self._given_up:
            self._results[
                sink.id
            ].reason = (
                "given up: it lacks changes that the log no longer had; see 'deltaforge sinks'"
            )
            return
        files = StateFiles(self._directory / f"sink-{len(self._work)}")
        try:
            rows = open_sink(sink, self._pipeline.name, self._tables, files, self._check)
        except (RetryableError, FatalError) as error:
            self._fail(sink.id, error)
            return
        self._stack.callback(rows.close)
        lag_s = 0.0 if sink.verify is None else float(sink.verify.lag_secs)
        found = {table.number: TableComparison(table=table.name) for table in self._tables}
        self._work[sink.id] = _SinkWork(rows, lag_s, found)

    def _fail(self, sink_id: str, error: DeltaForgeError) -> None:
        _log.warning("verification of sink %s: %s", sink_id, redacted(str(error)))
        self._results[sink_id].reason = redacted(str(error))
        self._work.pop(sink_id, None)

    def _each_sink(self, call: Callable[[str, _SinkWork], None]) -> None:
        """Do something with each sink; one that fails is left out from then on."""
        for sink_id, work in list(self._work.items()):
            self._check()
            try:
                call(sink_id, work)
            except SpecError:
                raise
            except (RetryableError, FatalError) as error:
                self._check()  # Its own errors end everything.
                self._fail(sink_id, error)

    def _read_all(self) -> None:
        """Read the sinks, then the tables, then what the sinks got meanwhile."""
        for _ in range(_READINGS_MAX):
            known = {sink_id: set(topics) for sink_id, topics in self._rows.topics.items()}
            self._progress.phase = "reading the sinks"
            self._each_sink(
                lambda name, work: work.rows.read(self._rows.topics_of(name), late=False)
            )
            self._read_source()
            if all(set(topics) == known[name] for name, topics in self._rows.topics.items()):
                break
            # Processors send rows to places that were not read before the views were opened.
        else:
            _log.warning("rows go to new destinations at every look; those count as in motion")
        self._wait()
        self._progress.phase = "reading the sinks"
        self._each_sink(lambda name, work: work.rows.read(self._rows.topics_of(name), late=True))

    def _read_source(self) -> None:
        self._progress.phase, self._progress.done, self._progress.rows = "reading the tables", 0, 0
        self._source_files.clear()
        self._rows.settle()
        for table in self._tables:
            for chunk in self._chunks[table.name]:
                for count, found in self._rows.read(table, chunk):
                    self._check()
                    self._progress.rows += count
                    self._source_files.add(found)
                self._progress.done += 1

    def _wait(self) -> None:
        """Wait until every sink holds what the views show."""
        head = self._source.head()
        self._progress.phase = "waiting for checkpoints"
        began_s = time.monotonic()

        def wait(sink_id: str, work: _SinkWork) -> None:
            while not self._has_passed(sink_id, head):
                self._check()
                if time.monotonic() - began_s > self._options.wait_s:
                    raise RetryableError(
                        f"sink {sink_id} did not reach the log's end within "
                        f"{self._options.wait_s:g} s: see that the pipeline runs and this sink is "
                        "not behind, then verify again; or give it longer to wait"
                    )
                time.sleep(_POLL_S)
            rests_until_s = time.monotonic() + work.lag_s
            while time.monotonic() < rests_until_s:
                self._check()
                time.sleep(_POLL_S)

        self._each_sink(wait)

    def _has_passed(self, sink_id: str, head: Position) -> bool:
        record = self._checkpoints.records().get(sink_id)
        return record is not None and self._source.covers(record.position, head)

    def _compare(self) -> None:
        """Compare what was read, bucket by bucket."""
        self._progress.phase = "comparing"
        sinks = list(self._work.values())
        for source, *held in each_bucket(
            [self._source_files, *(work.rows.files for work in sinks)]
        ):
            own = latest(source)
            self._count_rows(own)
            for work, bucket in zip(sinks, held, strict=True):
                self._check()
                last = work.rows.latest(bucket)
                self._sort(work, last, compared(own, last))

    def _count_rows(self, own: pa.Table) -> None:
        tables, flags = own["table"].to_numpy(), own["flags"].to_numpy()
        dropped = np.bincount(tables[(flags & DROPPED) != 0], minlength=len(self._tables))
        rows = np.bincount(tables[(flags & DROPPED) == 0], minlength=len(self._tables))
        for work in self._work.values():
            for number, found in work.found.items():
                _add(found, "rows", int(rows[number]))
                _add(found, "dropped", int(dropped[number]))

    def _sort(self, work: _SinkWork, held: pa.Table, bucket: Compared) -> None:
        """Note what is to be looked at again; count the rest, once there is no room for it."""
        differing = np.flatnonzero(bucket.differs)
        room = max(0, self._options.rechecked - len(work.moving))
        for at in differing[:room].tolist():
            there = int(bucket.sink[at])
            row = HeldRow(0, is_there=False, is_late=bool(bucket.late[at]))
            if there >= 0:
                row = held_row(held.slice(there, 1).to_pylist()[0])
            work.moving[int(bucket.tables[at]), bucket.keys[at].as_py()] = row
        rest = differing[room:]
        late, tables = bucket.late[rest], bucket.tables[rest]
        in_source, in_sink = bucket.source[rest] >= 0, bucket.sink[rest] >= 0
        kinds = {
            MISSING: ~late & ~in_sink,
            EXTRA: ~late & ~in_source,
            DIFFERENT: ~late & in_source & in_sink,
            INCONCLUSIVE: late,
        }
        for kind, chosen in kinds.items():
            for number in np.unique(tables[chosen]).tolist():
                mine = rest[chosen & (tables == number)]
                first = bucket.keys.take(pa.array(mine[: self._options.kept_keys])).to_pylist()
                self._count(work, number, kind, first, len(mine))

    def _look_again(self) -> None:
        """Look at rows that differed until each is equal, surely differs, or was too often late."""
        for number in range(self._options.rounds):
            if not any(work.moving for work in self._work.values()):
                return
            self._progress.rounds = number + 1
            if number:
                time.sleep(_ROUND_PAUSE_S * number)
            self._each_sink(lambda _, work: work.rows.look(work.moving, late=False))
            self._progress.phase = "looking again"
            source = self._read_again()
            self._wait()
            self._progress.phase = "looking again"
            self._each_sink(lambda _, work: work.rows.look(work.moving, late=True))
            for work in self._work.values():
                self._settle(work, source)
        for work in self._work.values():
            for table, key in work.moving:
                self._count(work, table, INCONCLUSIVE, [key])
            work.moving.clear()

    def _read_again(self) -> Mapping[RowKey, SourceRow]:
        wanted: defaultdict[int, set[bytes]] = defaultdict(set)
        for work in self._work.values():
            for number, key in work.moving:
                wanted[number].add(key)
        found: dict[RowKey, SourceRow] = {}
        for number, keys in wanted.items():
            self._check()
            table = self._tables[number]
            rows = self._rows.read_again(table, self._chunks[table.name][0], keys)
            found |= {(number, key): row for key, row in rows.items()}
        return found

    def _settle(self, work: _SinkWork, source: Mapping[RowKey, SourceRow]) -> None:
        """Take out of the rows in motion those of which it is known what they are."""
        for (table, key), held in list(work.moving.items()):
            row = source.get((table, key))
            if (row is not None and row.is_dropped) or _is_same(row, held):
                del work.moving[table, key]
            elif held.is_late:
                work.steady.pop((table, key), None)
            elif self._is_steady(work, (table, key), row, held):
                del work.moving[table, key]
                kind = _kind(in_source=row is not None, in_sink=held.is_there)
                self._count(work, table, kind, [key])

    def _is_steady(
        self, work: _SinkWork, key: RowKey, row: SourceRow | None, held: HeldRow
    ) -> bool:
        """Return whether a row has differed in the same way for as many looks as are needed."""
        both = (None if row is None else row.content, held.content if held.is_there else None)
        former, looks = work.steady.get(key, (None, 0))
        looks = looks + 1 if former == both else 1
        work.steady[key] = (both, looks)
        return looks >= min(work.rows.steady_looks, self._options.rounds)

    def _count(
        self, work: _SinkWork, table: int, kind: str, keys: Sequence[bytes], count: int = 1
    ) -> None:
        _add(work.found[table], kind, count)
        kept = work.keys.setdefault(table, {}).setdefault(kind, [])
        room = self._options.kept_keys - len(kept)
        texts = (key.decode(errors="replace") for key in keys if len(key) <= _KEY_BYTES_MAX)
        kept += islice(texts, room)

    def _concluded(self) -> VerifyResult:
        keys: dict[str, dict[str, dict[str, list[str]]]] = {}
        # A repair would delete what is extra, which may be a row of another table.
        unsure = {INCONCLUSIVE, *([EXTRA] if self._rows.mixes_tables else [])}
        for sink_id, work in self._work.items():
            result = self._results[sink_id]
            result.notes.extend(work.rows.notes)
            result.messages = work.rows.messages
            for number, counted in work.found.items():
                if self._is_keyed_otherwise(work, number):
                    reason = "a processor sets the messages' keys: they do not name its rows"
                    result.tables.append(TableComparison(table=counted.table, reason=reason))
                    continue
                for kind, kept in work.keys.get(number, {}).items():
                    counted.examples[kind] = sorted(kept)[: self._options.examples]
                    if kind not in unsure and number not in self._rows.renamed_keys:
                        of_table = keys.setdefault(sink_id, {}).setdefault(counted.table, {})
                        of_table[kind] = sorted(kept)
                result.tables.append(counted)
            result.tables.extend(
                TableComparison(table=name, reason=reason) for name, reason in self._refused.items()
            )
            result.tables.sort(key=lambda each: each.table)
        results = list(self._results.values())
        return VerifyResult.of(results, keys)

    def _is_keyed_otherwise(self, work: _SinkWork, number: int) -> bool:
        rows = work.rows.rows if isinstance(work.rows, MessageSink) else None
        return rows is not None and number in self._rows.keyed_otherwise(rows)


def _kind(*, in_source: bool, in_sink: bool) -> str:
    if in_source and in_sink:
        return DIFFERENT
    return MISSING if in_source else EXTRA


def _is_same(row: SourceRow | None, held: HeldRow) -> bool:
    if row is None or not held.is_there:
        return row is None and not held.is_there
    if held.unchanged is None:
        return row.content == held.content
    return without_columns(row.after, held.unchanged) == held.content


def _add(found: TableComparison, name: str, count: int) -> None:
    setattr(found, name, getattr(found, name) + count)
