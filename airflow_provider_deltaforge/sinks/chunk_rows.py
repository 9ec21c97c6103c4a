"""The rows of a snapshot's chunk, which a sink that holds our position can take once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from airflow_provider_deltaforge.events.message import Messages, Rejection


@dataclass(frozen=True, slots=True)
class ChunkMark:
    """What a destination keeps together with the rows of a chunk.

    Attributes:
        name: of the run and the chunk, the same at each attempt.
        text: names the view that these rows were read from.
        is_first: no former attempt can have written rows of the chunk.
    """

    name: str
    text: str
    is_first: bool


@dataclass(frozen=True, slots=True)
class WrittenChunk:
    """How writing a chunk ended.

    Attributes:
        text: of the mark that the destination holds: of a former attempt, if that had written the
            rows. None if anything was refused.
        rejections: what the destination refuses; nothing was written then.
    """

    text: str | None
    rejections: Sequence[Rejection] = ()


@runtime_checkable
class ChunkWriter(Protocol):
    """A writer whose destination takes all rows of one view of a chunk, each once.

    It takes them and the mark together, or goes on with the rows of the view that it has begun.
    """

    def write_chunk(self, messages: Messages, mark: ChunkMark) -> WrittenChunk:
        """Write a chunk's rows with their mark, unless the destination has rows under that name.

        Called again with the same arguments after a RetryableError, and without what was refused.

        Args:
            messages: of all rows; there may be none.
            mark: what is kept with them.

        Raises:
            RetryableError, AccessError, FatalError: as ``SinkWriter.write`` does.
        """


@runtime_checkable
class RowMarker(Protocol):
    """A writer that leaves a mark in the same step as the rows, so that neither is lost alone."""

    row_mark: str | None
    """Behind what the last write has written, as ``RowMarks`` has it; None if it left none."""


@runtime_checkable
class RunNotes(Protocol):
    """A claim that keeps notes of its writers in the state store, as long as a copy is known.

    Each method raises RetryableError while the store is away.
    """

    def keep(self, run: str, notes: Mapping[str, bytes | None]) -> None:
        """Store notes of one copy by their names, all or nothing; None removes one.

        Raises:
            FencedError: a newer epoch has begun.
        """

    def kept(self, run: str, prefix: str) -> dict[str, bytes]:
        """Return the notes of one copy whose names begin so, in the order of the names."""
