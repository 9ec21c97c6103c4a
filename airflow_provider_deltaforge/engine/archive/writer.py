"""Writes the log to the archive, beside delivery.

The decoder thread hands over what it decodes; a thread of the writer puts it into files. Delivery
does not wait for it. Only the source does: it keeps its log until the archive has it. A lane that
begins behind what the archive has reads the rest once more, for the archive alone.

Files come first, then the entry that names them: an entry is written whole or not at all, and a
file that none names does not count. The fence is asked after the entry, before the source may
forget: a lane that finds its epoch current then knows that no newer one began behind an older end.
"""

import hashlib
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa

from airflow_provider_deltaforge.engine.archive.folder import (
    ArchiveEntry,
    ArchiveFile,
    ArchiveFolder,
    ArchivePart,
    EntryName,
    valid_names,
)
from airflow_provider_deltaforge.engine.archive.retention import delete_old_daily
from airflow_provider_deltaforge.engine.archive.tables import (
    ArchivedRows,
    batches_table,
    schema_text,
    split_by_table,
    to_parquet,
)
from airflow_provider_deltaforge.engine.archive.waiting import WaitingBatches
from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint, reach
from airflow_provider_deltaforge.engine.base.heartbeat import Heartbeat
from airflow_provider_deltaforge.engine.base.lane_stats import LaneStats
from airflow_provider_deltaforge.engine.base.retry import StopRetrying, retry_until
from airflow_provider_deltaforge.engine.base.task_context import TaskContext
from airflow_provider_deltaforge.errors import (
    FatalError,
    FencedError,
    RetryableError,
)
from airflow_provider_deltaforge.events.change import ChangeBatch, Position
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.spec.policies import ArchiveSettings
from airflow_provider_deltaforge.storage.contract import shown_identity
from airflow_provider_deltaforge.storage.records.archives import ArchiveRecords
from airflow_provider_deltaforge.storage.records.record import now_ms
from airflow_provider_deltaforge.telemetry.redaction import redacted

_POLL_S = 0.1
_CLOSE_S = 5.0
_WAITING_MAX = 4
_EMPTY_FLUSHES = 10
_HOUR_S = 3600.0

_log = logging.getLogger(__name__)


class ArchiveWriter:
    """Keeps the log of one lane.

    Args:
        context: the opened job.
        settings: of the document.
        stats: of the lane; shows how the archive is doing.
        heartbeat: says that the lane ends, and whether a newer one has started.
    """

    def __init__(
        self,
        context: TaskContext,
        settings: ArchiveSettings,
        stats: LaneStats,
        heartbeat: Heartbeat,
    ) -> None:
        self._context, self._source = context, context.pipeline.spec.source
        self._settings = settings
        self._stats, self._confirm = stats, heartbeat.confirm
        self._folder = ArchiveFolder(settings.directory, context.pipeline.name)
        self._records = ArchiveRecords(context.store, context.pipeline.name)
        self._changed = threading.Condition()
        self._stop = StopRetrying(heartbeat.ending.is_set)
        self._taker: object = None
        self._waiting: WaitingBatches
        self._parts: list[ArchivePart] = []
        self._times: list[int] = []
        self._next = EntryName(context.fence.version, 0, "opened")
        self._opening: EntryName | None = None
        self._durable: Position
        self._hashes: dict[TableSchema, str] = {}
        self._writing: WaitingBatches | None = None
        self._closing = False
        self._failure: Exception | None = None
        self._tidy_at = 0.0
        self._thread: threading.Thread | None = None

    @property
    def durable(self) -> Position:
        """Return up to where the source may forget its log, as far as the archive is concerned."""
        return self._durable

    def open(self, start: Position) -> None:
        """Find where the archive ends, or forget what was taken behind what is durable.

        Args:
            start: where an archive begins that is new.

        Raises:
            RetryableError: the directory is away, and the lane ends.
            FatalError: the directory holds another archive, or a newer one.
        """
        self._stats.archive_blocks(is_full=True)
        if self._thread is None:
            self._retried(lambda: self._open(start))
        else:
            self._settle()
        self._stats.archive_blocks(is_full=False)

    def take_from(self, taker: object) -> None:
        """Take batches from one taker, and from no other one any more."""
        with self._changed:
            self._taker = taker

    def lose(self, start: Position, reason: str) -> None:
        """Record that the archive lacks what lies before ``start``; it goes on there."""
        _log.error(
            "the archive has a hole from %s to %s: %s", dict(self._durable), dict(start), reason
        )
        gap = ArchiveEntry(
            start=dict(self._durable), end=dict(start), written_ms=now_ms(), reason=reason
        )
        name = replace(self._next, kind="gap", after=None)
        self._retried(lambda: self._folder.write_entry(name, gap))
        self._next = replace(name, number=name.number + 1, kind="segment")
        with self._changed:
            self._durable, self._waiting = start, WaitingBatches(start)
        self._stats.archive_hole()

    def close(self) -> None:
        """Write what waits, if that is possible soon; the next lane reads the rest again."""
        with self._changed:
            self._taker = None
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)
        self._stop.close()

    def take(self, taker: object, batch: ChangeBatch) -> None:
        """Take a batch over, in the order of the log; waits while too much is waiting.

        Raises:
            FatalError: the archive cannot be written, and trying again does not help.
        """
        room = _WAITING_MAX * self._settings.flush_bytes
        with self._changed:
            while self._held >= room and taker is self._taker and self._failure is None:
                self._stats.archive_blocks(is_full=True)
                self._changed.wait(_POLL_S)
            self._stats.archive_blocks(is_full=False)
            if self._failure is not None:
                raise self._failure
            if taker is not self._taker:
                return  # Of a log that was closed meanwhile.
            is_first = not self._waiting.rows
            self._waiting.add(batch)
            if is_first:
                self._show_oldest()
            if self._waiting.nbytes >= self._settings.flush_bytes:
                self._changed.notify_all()

    @property
    def _held(self) -> int:
        """Return how many bytes are in memory."""
        return self._waiting.nbytes + (self._writing.nbytes if self._writing is not None else 0)

    def _show_oldest(self) -> None:
        """Show how old the oldest change is that does not count yet."""
        written = min(self._times, default=None)
        taken = [w.first_ms for w in (self._writing, self._waiting) if w is not None]
        self._stats.archive_lacks(next((ms for ms in [written, *taken] if ms is not None), None))

    def _retried(self, call: Callable[[], None]) -> None:
        retry_until(call, self._stats.archive_error, self._stop.over, self._stop.rest)

    def _open(self, start: Position) -> None:
        """Find where the archive ends, and begin behind it."""
        self._own()
        # An attempt that failed may have written its entry all the same.
        names = valid_names(name for name in self._folder.names() if name != self._opening)
        end, last = start, None
        if names:
            last = names[-1]
            if last.epoch >= self._next.epoch:
                raise FatalError(
                    f"spec.archive.directory: {self._folder.shown} was written by a later driver "
                    f"(epoch {last.epoch}) than this state store knows of (epoch "
                    f"{self._next.epoch}): the store was restored from a backup, or the pipeline "
                    "made anew; name another directory, or move this one away"
                )
            end = self._folder.read_entry(last).end
        link = None if last is None else (last.epoch, last.number)
        opened = ArchiveEntry(start=dict(end), end=dict(end), written_ms=now_ms())
        self._opening = replace(self._next, after=link)
        self._folder.write_entry(self._opening, opened)
        reach(CrashPoint.ARCHIVE_OPENED)
        self._next = replace(self._next, number=1, kind="segment")
        self._durable, self._waiting = end, WaitingBatches(end)
        self._stats.archived(0, 0, 0, end)
        self._thread = threading.Thread(target=self._run, name="archive", daemon=True)
        self._thread.start()

    def _own(self) -> None:
        """Make sure that the folder is this pipeline's, and is there if it ever was."""
        place, store = self._folder.shown, shown_identity(self._context.store)
        owner = {"v": 1, "pipeline": self._context.pipeline.name, "store": store}
        if (found := self._folder.owner()) is not None:
            if found.get("store") != store:
                raise FatalError(
                    f"spec.archive.directory: {place} is the archive of a pipeline with another "
                    "state store; name another directory, or move this one away"
                )
        elif self._records.was_begun(place):
            raise self._folder.missing()
        else:
            self._folder.begin(owner)
            reach(CrashPoint.ARCHIVE_BEGUN)
        if not self._records.was_begun(place):
            self._context.store.transact([self._records.begin(place)], self._context.fence)

    def _settle(self) -> None:
        """Forget what was taken and is not written: the log is read again behind what is."""
        with self._changed:
            self._taker = None
            self._changed.notify_all()
            while self._writing and not self._stop.over() and self._failure is None:
                self._changed.wait(_POLL_S)
            if self._writing:
                raise RetryableError("asked to end before the archive could be written")
            if self._parts:  # Files of this number are left: none of an entry may be among them.
                self._next = replace(self._next, number=self._next.number + 1)
            self._waiting, self._parts, self._times = WaitingBatches(self._durable), [], []
            self._show_oldest()

    def _run(self) -> None:
        try:
            self._tidy_daily()
            while self._step():
                pass
        except Exception as error:  # noqa: BLE001 - shown where the next batch comes
            is_away = isinstance(error, RetryableError) and self._stop.over()
            if isinstance(error, FencedError) or is_away:
                self._end(None)  # The lane ends.
                return
            _log.error("the archive cannot go on: %s", redacted(str(error)))
            self._end(error if isinstance(error, FatalError) else FatalError(str(error)))

    def _end(self, failure: Exception | None) -> None:
        """Take nothing more; a failure is raised where the next batch comes."""
        with self._changed:
            self._writing, self._failure = None, failure
            self._taker = self._taker if failure is not None else None
            self._changed.notify_all()

    def _step(self) -> bool:
        """Write what is due; return False once there is nothing more to do."""
        with self._changed:
            while not self._is_due() and not self._closing and not self._stop.is_closed:
                self._changed.wait(_POLL_S)
            closing, waiting = self._closing, self._waiting
            whole, rest = waiting.cut()
            if not whole and (closing or waiting.nbytes < self._settings.flush_bytes):
                return not closing  # Of an open transaction: its end comes, or it is read again.
            commits = bool(whole)
            batches = whole if commits else rest
            end = batches[-1].end if commits else waiting.end
            self._writing, self._waiting = waiting, WaitingBatches(end)
            for batch in rest if commits else ():
                self._waiting.add(batch)
        self._write(batches, end if commits else None)
        self._tidy_daily()
        with self._changed:
            self._writing = None
            self._show_oldest()
            self._changed.notify_all()
        return not closing

    def _is_due(self) -> bool:
        waiting, settings = self._waiting, self._settings
        if waiting.since_s is None:
            return False
        if waiting.nbytes >= settings.flush_bytes:
            return True
        longest_s = settings.flush_secs * (1 if waiting.rows or self._parts else _EMPTY_FLUSHES)
        return time.monotonic() - waiting.since_s >= longest_s and bool(waiting.cut()[0])

    def _write(self, batches: list[ChangeBatch], end: Position | None) -> None:
        """Write batches; behind whole transactions also the entry that makes them count."""
        stem = f"{self._next.stem}-{len(self._parts)}"
        by_table = split_by_table(batches)
        files = [self._put(f"{each.folder}/{stem}.parquet", each.rows, each) for each in by_table]
        kept = batches_table(batches, self._source, self._hash)
        self._parts.append(
            ArchivePart(files=tuple(files), batches=self._put(f"log/{stem}.batches.parquet", kept))
        )
        for batch in batches:
            if batch.rows.num_rows:
                times = batch.rows.column("ts_ms").to_numpy()
                self._times += [int(times.min()), int(times.max())]
        if end is None:
            return
        reach(CrashPoint.ARCHIVE_FILES_WRITTEN)
        entry = ArchiveEntry(
            start=dict(self._durable),
            end=dict(end),
            from_ms=min(self._times, default=None),
            to_ms=max(self._times, default=None),
            written_ms=now_ms(),
            parts=tuple(self._parts),
        )
        self._retried(self._confirm)
        self._retried(lambda: self._folder.write_entry(self._next, entry))
        reach(CrashPoint.ARCHIVE_STORED)
        self._next = replace(self._next, number=self._next.number + 1)
        self._parts, self._times = [], []
        self._retried(self._confirm)
        self._durable = end
        files = entry.files
        rows = sum(file.rows for part in entry.parts for file in part.files)
        self._stats.archived(rows, sum(file.bytes for file in files), len(files), end)

    def _put(self, path: str, table: pa.Table, of: ArchivedRows | None = None) -> ArchiveFile:
        data = to_parquet(table)
        self._retried(lambda: self._folder.write(path, data))
        return ArchiveFile(
            path=path,
            rows=table.num_rows,
            bytes=data.size,
            sha256=hashlib.sha256(data).hexdigest(),
            day=of.day if of is not None else None,
            table=of.table if of is not None else None,
        )

    def _hash(self, schema: TableSchema) -> str:
        """Return a schema's hash; what has it is durable then."""
        known = self._hashes.get(schema)
        if known is None:
            text = schema_text(schema)
            known = hashlib.sha256(text).hexdigest()
            self._retried(lambda: self._folder.write_once(f"schemas/{known}.json", text))
            self._hashes[schema] = known
        return known

    def _tidy_daily(self) -> None:
        if time.monotonic() < self._tidy_at or self._stop.over():
            return
        self._tidy_at = time.monotonic() + _HOUR_S
        with suppress(RetryableError):  # Another hour will do.
            self._confirm()
            # Beside writing: in an object store it takes a request for each file.
            threading.Thread(
                target=self._tidy, args=(self._next,), name="archive-tidy", daemon=True
            ).start()

    def _tidy(self, upto: EntryName) -> None:
        try:
            delete_old_daily(self._folder, self._settings.retention_days, upto)
        except RetryableError as error:
            _log.debug("old files of the archive are not deleted yet: %s", redacted(str(error)))
        except Exception as error:  # noqa: BLE001 - the log goes on to be written
            _log.error("old files of the archive are not deleted: %s", redacted(str(error)))
