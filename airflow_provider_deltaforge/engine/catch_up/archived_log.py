"""The log for a sink that is behind: from the archive, where the source has it no more."""

from collections.abc import Callable
from typing import Any

from airflow_provider_deltaforge.engine.archive.reader import Archive, ArchiveReader, ArchiveSegment
from airflow_provider_deltaforge.errors import PositionLostError
from airflow_provider_deltaforge.events.change import ChangeBatch, Position
from airflow_provider_deltaforge.sources.reader_contract import LogReader
from airflow_provider_deltaforge.spec.document import Pipeline

OpenSource = Callable[[Position], LogReader]
"""Opens the source's own log behind a position."""


def open_log(pipeline: Pipeline, at: Position, open_source: OpenSource) -> LogReader:
    """Open the log behind a position.

    Args:
        pipeline: the document; it may have an archive.
        at: where to begin.
        open_source: opens the source's.

    Raises:
        PositionLostError: neither has it.
        RetryableError: the source, or the archive's directory, is away.
    """
    try:
        return open_source(at)
    except PositionLostError as lost:
        if pipeline.spec.archive is None:
            raise
        try:
            return ArchivedLog(Archive.of(pipeline).open(at), open_source)
        except PositionLostError as error:
            raise PositionLostError(f"{lost}; {error}") from error


class ArchivedLog:
    """Reads the archive to its end, and goes on with the source: it keeps what lies behind.

    Args:
        archived: of what the source has no more.
        open_source: opens the source's log.
    """

    def __init__(self, archived: ArchiveReader, open_source: OpenSource) -> None:
        self._archived, self._open_source = archived, open_source
        self._live: LogReader | None = None

    def read(self, timeout_s: float) -> Any:
        """Return the next segment; see ``LogReader.read``."""
        if self._live is None and self._archived.is_caught_up:
            try:
                self._live = self._open_source(self._archived.end)
            except PositionLostError:
                # The archive has grown meanwhile, so that the source was allowed to forget.
                self._archived.is_caught_up = False
        if self._live is not None:
            return self._live.read(timeout_s)
        return self._archived.read(timeout_s)

    @property
    def is_caught_up(self) -> bool:
        """Return whether the source has nothing more; what the archive has lies behind."""
        return self._live is not None and self._live.is_caught_up

    def decode(self, segment: Any) -> ChangeBatch:
        """Decode a segment that this reader read."""
        if isinstance(segment, ArchiveSegment) or self._live is None:
            return self._archived.decode(segment)
        return self._live.decode(segment)

    def acknowledge(self, position: Position) -> None:
        """Report to the source, once it is read from, what is durable."""
        if self._live is not None:
            self._live.acknowledge(position)

    def close(self) -> None:
        """Close both."""
        self._archived.close()
        if self._live is not None:
            self._live.close()
