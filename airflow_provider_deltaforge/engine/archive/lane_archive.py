"""The archive as a lane sees it: where to read from, and what the source may forget."""

import logging

from airflow_provider_deltaforge.engine.archive.reader import Archive
from airflow_provider_deltaforge.engine.archive.writer import ArchiveWriter
from airflow_provider_deltaforge.engine.base.heartbeat import Heartbeat
from airflow_provider_deltaforge.engine.base.lane_stats import LaneStats
from airflow_provider_deltaforge.engine.base.task_context import TaskContext
from airflow_provider_deltaforge.engine.read.known_part import KnownPart
from airflow_provider_deltaforge.errors import PositionLostError
from airflow_provider_deltaforge.events.change import ChangeBatch, Position
from airflow_provider_deltaforge.spec.document import Pipeline
from airflow_provider_deltaforge.storage.records.stats import ArchiveProgress
from airflow_provider_deltaforge.telemetry.redaction import redacted

_log = logging.getLogger(__name__)


class LogTap:
    """Takes the batches of one opening of the log. Used by its decoder thread.

    Args:
        writer: of the archive; None where there is none.
        read_from: where the log is read from: before ``delivered`` for the archive alone.
        archived: leaves out what is in the archive.
        delivered: leaves out what the sinks have.
    """

    def __init__(
        self,
        writer: ArchiveWriter | None,
        read_from: Position,
        archived: KnownPart,
        delivered: KnownPart,
    ) -> None:
        self._writer, self.read_from = writer, read_from
        self._archived, self._delivered = archived, delivered

    def take(self, batch: ChangeBatch) -> None:
        """Take a batch over, as it came from the source; see ``ArchiveWriter.take``."""
        if self._writer is not None and (rest := self._archived.rest(batch)) is not None:
            self._writer.take(self, rest)

    def undelivered(self, batch: ChangeBatch) -> ChangeBatch | None:
        """Return what of a batch is not read for the archive alone; None: nothing."""
        return self._delivered.rest(batch)


class LaneArchive:
    """The archive of one lane, if its document has one. Used by the delivery thread.

    Args:
        context: the opened job.
        stats: of the lane.
        heartbeat: of the lane.
    """

    def __init__(self, context: TaskContext, stats: LaneStats, heartbeat: Heartbeat) -> None:
        self._source = context.pipeline.spec.source
        settings = context.pipeline.spec.archive
        self._writer: ArchiveWriter | None = None
        if settings is not None:
            stats.archive = ArchiveProgress()
            self._writer = ArchiveWriter(context, settings, stats, heartbeat)
        self._announced: Position | None = None
        self._reads_again = False
        self._unreadable: PositionLostError | None = None

    @property
    def is_kept(self) -> bool:
        """Return whether there is one."""
        return self._writer is not None

    def begin(self, start: Position, *, anew: bool) -> LogTap:
        """Prepare for a log that is opened now: from where the archive ends, if that is earlier.

        Args:
            start: where delivery begins.
            anew: nothing was delivered before; what lies in front of it is not read.

        Raises:
            RetryableError: the directory is away, and the lane ends.
            FatalError: the directory holds another archive, or a newer one.
        """
        writer, unknown = self._writer, KnownPart(self._source, None)
        if writer is None:
            return LogTap(None, start, unknown, unknown)
        writer.open(start)
        end = writer.durable
        is_known = self._holds(end, start)
        reason = None if self._unreadable is None else redacted(str(self._unreadable))
        if anew:
            reason = "the pipeline began anew"
        elif is_known is None:
            reason = "the server's log has another history now"
        self._reads_again = is_known is not True and reason is None
        if self._reads_again:
            _log.info("the archive ends at %s; the log is read from there", dict(end))
        elif not is_known:
            writer.lose(start, reason or "")
        self._unreadable = None
        read_from, delivered = start, unknown
        if self._reads_again:
            read_from, delivered = end, KnownPart(self._source, start)
        tap = LogTap(writer, read_from, KnownPart(self._source, writer.durable), delivered)
        writer.take_from(tap)
        return tap

    def forgo(self, error: PositionLostError) -> None:
        """Go on without what only the archive lacks, once the log is opened again.

        Raises:
            PositionLostError: the error, if others lack it, too.
        """
        if not self._reads_again:
            raise error
        self._unreadable = error

    def earliest(self, position: Position) -> Position:
        """Return up to where the source may forget its log: a position, or where the archive ends.

        Args:
            position: everything up to it is delivered.
        """
        if self._writer is None or self._holds(self._writer.durable, position):
            return position
        return self._writer.durable

    def has_news(self) -> bool:
        """Return whether more is durable than when this was asked last."""
        if self._writer is None:
            return False
        former, self._announced = self._announced, self._writer.durable
        return former is not self._announced

    def close(self) -> None:
        """Write what waits, if that is possible soon; the next lane reads the rest again."""
        if self._writer is not None:
            self._writer.close()

    def _holds(self, at: Position, position: Position) -> bool | None:
        """Return whether everything before one place is before another; None: not comparable."""
        try:
            if self._source.covers(at, position):
                return True
            return False if self._source.covers(position, at) else None
        except PositionLostError:
            return None


def reach(pipeline: Pipeline, position: Position) -> None:
    """Check that the log can be followed from a position on, in the source or in the archive.

    Raises:
        PositionLostError: neither has it.
        RetryableError: one of them is away.
    """
    try:
        pipeline.spec.source.reach(position)
    except PositionLostError as lost:
        if pipeline.spec.archive is None:
            raise
        try:
            Archive.of(pipeline).open(position).close()
        except PositionLostError as error:
            raise PositionLostError(f"{lost}; {error}") from error
