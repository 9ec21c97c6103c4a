"""The processors of a pipeline, one behind the other; several of each for the parts of a batch.

The chain answers for what no processor needs to know of: which row of the log each event stands
for, ids that are the same on every replay, the mark of events that were made, and where a
transaction ends when its last row was dropped.
"""

import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.columns import json_fields
from airflow_provider_deltaforge.columns.binary_columns import id_bytes
from airflow_provider_deltaforge.columns.marks import UNCHANGED
from airflow_provider_deltaforge.columns.row_hash_kernel import text_checksums
from airflow_provider_deltaforge.engine.base.parallel_calls import call_in_parallel
from airflow_provider_deltaforge.engine.base.processor_stats import ProcessorStats
from airflow_provider_deltaforge.engine.base.retry import StopRetrying, retry_until
from airflow_provider_deltaforge.engine.render.former_keys import without_foreign
from airflow_provider_deltaforge.engine.render.key_parts import parts_of_rows
from airflow_provider_deltaforge.engine.render.processed_batch import (
    PLACE_COLUMNS,
    BatchTransactions,
    ProcessedBatch,
    ProcessorInput,
    RefusedEvents,
    flags,
    merged,
)
from airflow_provider_deltaforge.errors import (
    DeltaForgeError,
    EventError,
    FatalError,
    RetryableError,
    SpecError,
)
from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA
from airflow_provider_deltaforge.events.ids import id_key, made_ids
from airflow_provider_deltaforge.events.message import Rejection
from airflow_provider_deltaforge.processors.contract import Processed, Processor, Worker
from airflow_provider_deltaforge.telemetry.logs import SeveralLines

_CLOSE_S = 10.0
_PLAIN = (EventError, FatalError, RetryableError, SpecError)

_log = logging.getLogger(__name__)
_EVENT_ID = CHANGE_SCHEMA.get_field_index("event_id")
_UNCHANGED = CHANGE_SCHEMA.get_field_index("unchanged")
_SYNTHETIC = CHANGE_SCHEMA.get_field_index("synthetic")
_CONTENTS = ("op", "db", "schema", "table", "ts_ms", "before", "after", "ddl")
_PRIME = np.uint64(0x9E3779B185EBCA87)


class ProcessorWatcher(Protocol):
    """Called with what processors do and the errors they meet."""

    def report_processor_error(self, processor_id: str, error: BaseException | None) -> None:
        """Called at every failed attempt, and with None when the processor works again."""


class ProcessorChain:
    """Runs a pipeline's processors in order. ``process`` is called by one thread at a time.

    Args:
        processors: in the order of the document.
        processor_stats: where their work is counted.
        watcher: called with errors.
        ending: asked while a processor is tried again; True gives up.
    """

    def __init__(
        self,
        processors: Sequence[Processor],
        processor_stats: ProcessorStats,
        watcher: ProcessorWatcher,
        ending: Callable[[], bool],
    ) -> None:
        self._processors = processors
        self._processor_stats = processor_stats
        self._watcher = watcher
        self._chains: list[list[_ProcessorStep]] = []
        """One for each part of a batch."""
        self._closing = StopRetrying(ending)
        self._busy = threading.Lock()
        self._failing: set[_ProcessorStep] = set()
        self._telling = threading.Lock()

    def open(self, parallelism: int = 1) -> None:
        """Start every worker, if that is not done; if one does not start, the others are closed.

        Args:
            parallelism: parts of a batch that are processed at the same time, each by workers of
                its own; a key is always in the same part.

        Raises:
            SpecError: a processor's settings cannot work.
        """
        if self._chains or not self._processors:
            return
        masks = [at for at, processor in enumerate(self._processors) if processor.masks]
        try:
            for _ in range(parallelism):
                self._chains.append([])
                for at, processor in enumerate(self._processors):
                    masked = not masks or at > masks[-1]
                    with _named(processor.id):
                        self._chains[-1].append(
                            _ProcessorStep(processor.id, processor.open(), masked=masked)
                        )
        except BaseException:
            self._let_go()
            raise

    def process(self, rows: pa.RecordBatch, since: str | None = None) -> ProcessedBatch:
        """Run every processor; nothing is left out but what they drop or refuse.

        Args:
            rows: change events.
            since: begin with this processor; None: with the first.

        Raises:
            EventError: a batch cannot be processed as a whole.
            FatalError: processing can never work.
            RetryableError: asked to end while a processor was tried again.
        """
        with self._busy:
            if self._closing.is_closed:
                raise RetryableError("the processors are closed: the lane has ended")
            if not self._chains or not rows.num_rows:
                return ProcessedBatch(rows)
            transactions = BatchTransactions.of_batch(rows)
            chains = [_following(chain, since) for chain in self._chains]
            if len(chains) == 1:
                return self._run(chains[0], rows, transactions)
            numbers_of = parts_of_rows(rows, len(chains))
            used = np.unique(numbers_of).tolist()
            if len(used) == 1:
                return self._run(chains[used[0]], rows, transactions)
            ending = numbers_of[np.flatnonzero(flags(rows.column("tx_end")))]
            parts = [np.flatnonzero(numbers_of == number) for number in used]
            calls = [
                partial(
                    self._run,
                    chains[number],
                    rows.take(pa.array(at)),
                    transactions.part(at, ending == number),
                )
                for number, at in zip(used, parts, strict=True)
            ]
            made = call_in_parallel(calls, "processors")
            return merged(parts, made, transactions, [link.id for link in chains[0]])

    def _run(
        self,
        chain: Sequence["_ProcessorStep"],
        rows: pa.RecordBatch,
        transactions: BatchTransactions,
    ) -> ProcessedBatch:
        origins: np.ndarray | None = None
        refused: list[RefusedEvents] = []
        inputs: list[ProcessorInput] = []
        for link in chain:
            done = self._retry(link, rows)
            if done.rejections:
                refused.append(_refused(link, rows, origins, done.rejections, inputs))
            if link.masked:
                inputs.append(ProcessorInput(link.id, [rows.select(PLACE_COLUMNS)]))
            inputs = [
                replace(each, origins=_composed(each.origins, done.origins)) for each in inputs
            ]
            origins = _composed(origins, done.origins)
            before = rows
            rows = marked(link.id, link.key, rows, done)
            rows = without_foreign(before, rows, done.origins)
            rows = transactions.with_ends(rows, origins)
            if not rows.num_rows:
                break
        return ProcessedBatch(with_unchanged(rows), origins, refused, inputs)

    def close(self) -> None:
        """Close every worker, also one that still works after a while. Safe to call twice.

        An interpreter that nobody closes can keep the process from ending.
        """
        self._closing.close()
        idle = self._busy.acquire(timeout=_CLOSE_S)
        try:
            self._let_go()
        finally:
            if idle:
                self._busy.release()

    def _let_go(self) -> None:
        chains, self._chains = self._chains, []
        for link in (link for chain in chains for link in chain):
            try:
                link.worker.close()
            except Exception as error:  # noqa: BLE001 - the others are closed all the same
                _log.warning("processor %s did not close: %s", link.id, type(error).__name__)

    def _retry(self, link: "_ProcessorStep", rows: pa.RecordBatch) -> Processed:
        def tell(error: BaseException | None) -> None:
            with self._telling:
                self._failing = {each for each in self._failing if each is not link}
                if error is not None:
                    self._failing.add(link)
                elif any(each.id == link.id for each in self._failing):
                    return  # It works in this part alone.
            cause = error.__cause__ if error is not None else None
            # Whoever is told names the processor, too.
            plain = cause if isinstance(cause, DeltaForgeError) else error
            self._watcher.report_processor_error(link.id, plain)

        done = retry_until(
            partial(self._once, link, rows), tell, self._closing.over, self._closing.rest
        )
        events = (rows.num_rows, done.rows.num_rows)
        self._processor_stats.processed(link.id, events, len(done.rejections), done.counts)
        return done

    def _once(self, link: "_ProcessorStep", rows: pa.RecordBatch) -> Processed:
        began = time.perf_counter()
        failed = True
        self._processor_stats.calls(link.id)
        try:
            with _named(link.id):
                done = link.worker.process(rows)
            done = checked(link.id, rows, done)
            failed = False
        finally:
            self._processor_stats.called(link.id, time.perf_counter() - began, failed=failed)
        return done


def _following(chain: Sequence["_ProcessorStep"], since: str | None) -> Sequence["_ProcessorStep"]:
    names = [link.id for link in chain]
    return chain if since is None else chain[names.index(since) :]


class _ProcessorStep:
    """One processor at work, and the key of the ids of what it makes."""

    def __init__(self, processor_id: str, worker: Worker, *, masked: bool) -> None:
        self.id = processor_id
        self.worker = worker
        self.masked = masked
        self.key = id_key("made", processor_id)


@contextmanager
def _named(processor_id: str) -> Iterator[None]:
    """Name the processor in what it raises; an error nobody foresaw may quote a row's values."""
    who = f"processor {processor_id}"
    try:
        yield
    except DeltaForgeError as error:
        if type(error) in _PLAIN and who not in str(error):
            raise type(error)(f"{who}: {error}") from error
        raise
    except Exception as error:  # noqa: BLE001 - whatever a processor raises has a name
        frames = traceback.format_list(traceback.extract_tb(error.__traceback__))
        _log.error("%s failed at:%s", who, SeveralLines("\n" + "".join(frames)))
        raise FatalError(
            f"{who} failed with {type(error).__name__}; the log of the driver says where. Nothing "
            "of the batch was delivered: correct the processor or its settings, then start again"
        ) from None


def _refused(
    link: _ProcessorStep,
    rows: pa.RecordBatch,
    origins: np.ndarray | None,
    rejections: Sequence[Rejection],
    inputs: Sequence[ProcessorInput],
) -> RefusedEvents:
    first = {rejection.event_row: rejection for rejection in reversed(rejections)}
    at = np.array(sorted(first), np.int32)
    moved = [
        Rejection(row, first[event].kind, first[event].reason)
        for row, event in enumerate(at.tolist())
    ]
    own = at if origins is None else origins[at]
    chosen = pa.array(at)
    places = [each.rows().take(chosen) for each in inputs]
    return RefusedEvents(link.id, rows.take(chosen), own, moved, link.masked, places)


def _composed(origins: np.ndarray | None, following: pa.Int32Array | None) -> np.ndarray | None:
    if following is None:
        return origins
    own = numbers(following)
    return own if origins is None else origins[own]


def checked(processor_id: str, before: pa.RecordBatch, done: Processed) -> Processed:
    """Return what a processor made, in the order of the log.

    What would mark, count or deliver wrong events is refused.

    Raises:
        FatalError: a processor broke its contract.
    """
    rows = done.rows
    wrong = None
    if rows.schema.names != CHANGE_SCHEMA.names or rows.schema.types != CHANGE_SCHEMA.types:
        wrong = "other columns than those of change events"
    elif done.origins is None and rows.num_rows != before.num_rows:
        wrong = "another number of events, and no origins"
    elif done.made is not None and (len(done.made) != rows.num_rows or done.made.null_count):
        wrong = "marks of made events that do not fit its events"
    elif done.placed is not None and (done.made is None or len(done.placed) != rows.num_rows):
        wrong = "marks of placed events that do not fit its events"
    elif done.origins is not None and not _fits(done.origins, rows.num_rows, before.num_rows):
        wrong = "origins that are not rows of its input"
    elif done.origins is not None and _repeats(numbers(done.origins), done.made):
        wrong = "two events with one id, of which none is marked as made"
    elif any(not 0 <= rejection.event_row < before.num_rows for rejection in done.rejections):
        wrong = "rejections of events it was not given"
    if wrong is not None:
        raise FatalError(f"processor {processor_id} returned {wrong}: report this to its author")
    if not rows.schema.equals(CHANGE_SCHEMA):
        # A column that was set by its name alone has lost that it is never null.
        rows = pa.RecordBatch.from_arrays(rows.columns, schema=CHANGE_SCHEMA)
        done = replace(done, rows=rows)
    return _in_order(done)


def _in_order(done: Processed) -> Processed:
    """Return events in the order of those that they stand for or were made from."""
    if done.origins is None:
        return done
    origins = numbers(done.origins)
    if not (origins[1:] < origins[:-1]).any():
        return done
    order = pa.array(np.argsort(origins, kind="stable"))
    made = None if done.made is None else done.made.take(order)
    placed = None if done.placed is None else done.placed.take(order)
    rows, origins = done.rows.take(order), done.origins.take(order)
    return replace(done, rows=rows, origins=origins, made=made, placed=placed)


def _fits(origins: pa.Int32Array, count: int, below: int) -> bool:
    if len(origins) != count or origins.null_count or origins.type != pa.int32():
        return False
    found = numbers(origins)
    return not count or (int(found.min()) >= 0 and int(found.max()) < below)


def _repeats(origins: np.ndarray, made: pa.BooleanArray | None) -> bool:
    """Return whether two rows that nobody made stand for one row of the input."""
    own = origins if made is None else origins[~flags(made)]
    return len(own) > 1 and int(np.bincount(own).max()) > 1


def marked(processor_id: str, key: Any, before: pa.RecordBatch, done: Processed) -> pa.RecordBatch:
    """Return the rows, with ids and the mark of those that the processor made.

    Args:
        processor_id: the mark, which one of an earlier processor is not replaced by.
        key: of the processor, from ``id_key``.
        before: what the processor was given.
        done: what it returned.
    """
    rows = done.rows
    if done.made is None or not rows.num_rows or not done.made.true_count:
        return rows
    made = flags(done.made)
    origins = (
        np.arange(len(made), dtype=np.int32) if done.origins is None else numbers(done.origins)
    )
    ids, bases = id_bytes(rows.column("event_id")).copy(), id_bytes(before.column("event_id"))
    if done.placed is not None and (placed := made & flags(done.placed)).any():
        bases, origins = _with_contents(bases, origins, placed, rows)
    made_ids(key, bases, origins, made, ids)
    column = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(16), len(ids), [None, pa.py_buffer(ids)]
    )
    rows = rows.set_column(_EVENT_ID, CHANGE_SCHEMA.field(_EVENT_ID), column)
    synthetic = rows.column("synthetic")
    mine = pc.and_(done.made, synthetic.is_null())
    name = pa.array([processor_id], pa.utf8())[0]
    field = CHANGE_SCHEMA.field(_SYNTHETIC)
    return rows.set_column(_SYNTHETIC, field, pc.if_else(mine, name, synthetic))


def _with_contents(
    bases: np.ndarray, origins: np.ndarray, placed: np.ndarray, rows: pa.RecordBatch
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids that ids are made from, and which of them each row has.

    Those of placed rows hold what the rows hold: with other batches, another row has their place.
    """
    chosen = rows.filter(pa.array(placed))
    sums = np.zeros(chosen.num_rows, np.uint64)
    for name in _CONTENTS:
        column = chosen.column(name)
        text = column if column.type == pa.binary() else column.cast(pa.utf8()).cast(pa.binary())
        sums = sums * _PRIME + text_checksums(text)
    own = bases[origins[placed]]
    own.view(np.uint64)[:, 0] ^= sums
    distinct, which = np.unique(own, axis=0, return_inverse=True)
    origins = origins.copy()
    origins[placed] = len(bases) + which.reshape(-1)
    return np.concatenate([bases, distinct]), origins


def with_unchanged(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Name as unchanged only what still has the mark: processors set, rename and drop columns."""
    listed = rows.column("unchanged")
    if listed.null_count == len(listed):
        return rows
    kinds = listed.dictionary_encode()
    which = kinds.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    after = rows.column("after")
    found: dict[int, bytes | None] = {}
    for number, text in enumerate(kinds.dictionary.to_pylist()):
        names: list[str] = orjson.loads(text)
        places = np.flatnonzero(which == number)
        images = after.take(pa.array(places))
        spans = json_fields.locate_each(images, [[name] for name in names])
        marks = [pc.equal(json_fields.values(images, span), UNCHANGED) for span in spans]
        kept = np.stack([flags(pc.fill_null(mark, False)) for mark in marks])  # noqa: FBT003
        for at in np.flatnonzero(~kept.all(axis=0)).tolist():
            left = [name for name, still in zip(names, kept[:, at].tolist(), strict=True) if still]
            found[int(places[at])] = orjson.dumps(left) if left else None
    if not found:
        return rows
    texts = [found.get(row, text) for row, text in enumerate(listed.to_pylist())]
    column = pa.array(texts, pa.binary())
    return rows.set_column(_UNCHANGED, CHANGE_SCHEMA.field(_UNCHANGED), column)


def numbers(column: pa.Int32Array) -> np.ndarray:
    """Return a column of numbers for numpy."""
    found: np.ndarray = column.to_numpy(zero_copy_only=False)
    return found
