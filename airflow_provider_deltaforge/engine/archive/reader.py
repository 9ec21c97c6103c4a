"""Reads the archive of a pipeline: what it holds, and the log itself as a source's reader does."""

import hashlib
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from airflow_provider_deltaforge.engine.archive.folder import (
    ArchiveEntry,
    ArchiveFile,
    ArchiveFolder,
    ArchivePart,
    EntryName,
    valid_names,
)
from airflow_provider_deltaforge.engine.archive.tables import (
    from_parquet,
    restored_batches,
    schema_from,
)
from airflow_provider_deltaforge.engine.read.known_part import KnownPart
from airflow_provider_deltaforge.errors import FatalError, PositionLostError, SpecError
from airflow_provider_deltaforge.events.change import ChangeBatch, Position
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.sources.contract import Source
from airflow_provider_deltaforge.spec.document import Pipeline

_THREADS = 16
_LOOK_S = 1.0
_LIST_RATIO, _LIST_S = 20.0, 300.0
"""All names are listed again after so many times what it took, at the latest after so long."""
_NO_ENTRY = "an entry of the archive is missing"


@dataclass(frozen=True, slots=True)
class ArchiveSpan:
    """A stretch of the log that the archive has without a hole.

    Attributes:
        start: it has every change behind this.
        end: and up to this.
        from_ms: when its first change was committed, ms since the epoch; None without changes.
        to_ms: when its last one was.
        rows: how many changes.
        bytes: of its files.
    """

    start: Position
    end: Position
    from_ms: int | None
    to_ms: int | None
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ArchiveHole:
    """A stretch of the log that the archive lacks, between two that it has."""

    start: Position
    end: Position
    reason: str


@dataclass(frozen=True, slots=True)
class ArchivedTable:
    """What the archive has of one table and day."""

    day: str
    table: str
    rows: int
    bytes: int
    files: int


class Archive:
    """The archive of one pipeline, as it was when it was looked at. Used by one thread.

    Args:
        folder: of the pipeline.
        source: of its document: compares positions, and restores them.
    """

    def __init__(self, folder: ArchiveFolder, source: Source) -> None:
        self.folder = folder
        self._source = source
        self._entries: dict[EntryName, ArchiveEntry] = {}
        self._schemas: dict[str, TableSchema] = {}
        self._list_at = 0.0

    @classmethod
    def of(cls, pipeline: Pipeline) -> "Archive":
        """Return a pipeline's archive.

        Raises:
            SpecError: the document has none.
            RetryableError: the directory is away, or no archive was begun in it yet.
        """
        settings = pipeline.spec.archive
        if settings is None:
            name = pipeline.name
            raise SpecError(f"pipeline {name!r} has no archive: add spec.archive to its document")
        archive = cls(ArchiveFolder(settings.directory, pipeline.name), pipeline.spec.source)
        archive.refresh()
        return archive

    def refresh(self) -> None:
        """Read what was added since, and forget what was deleted.

        Raises:
            RetryableError: the directory is away, or no archive was begun in it yet.
        """
        began_s = time.monotonic()
        names = valid_names(self.folder.names())
        self._list_at = began_s + min(_LIST_RATIO * (time.monotonic() - began_s), _LIST_S)
        if not names and self.folder.owner() is None:
            raise self.folder.missing()
        self._learn(names)

    def follow(self) -> None:
        """Read what was added since, as ``refresh`` does.

        Where that takes long, only what the same lane has written is found by most calls.
        """
        if not self._entries or time.monotonic() >= self._list_at:
            self.refresh()
        elif behind := self.folder.names_behind(next(reversed(self._entries))):
            self._learn([*self._entries, *behind])

    def _learn(self, names: Sequence[EntryName]) -> None:
        missing = [name for name in names if name not in self._entries]
        with ThreadPoolExecutor(_THREADS) as pool:
            read = dict(zip(missing, pool.map(self._read_entry, missing), strict=True))
        former = self._entries | {name: entry for name, entry in read.items() if entry is not None}
        self._entries = {name: former[name] for name in names if name in former}

    def spans(self) -> list[ArchiveSpan]:
        """Return what it has, in the order of the log; between two of them something is missing."""
        spans: list[ArchiveSpan] = []
        for stretch in self._stretches():
            entries = [entry for _, entry in stretch]
            spans.append(
                ArchiveSpan(
                    entries[0].start,
                    entries[-1].end,
                    min((e.from_ms for e in entries if e.from_ms is not None), default=None),
                    max((e.to_ms for e in entries if e.to_ms is not None), default=None),
                    sum(file.rows for e in entries for part in e.parts for file in part.files),
                    sum(file.bytes for e in entries for file in e.files),
                )
            )
        return spans

    def holes(self) -> list[ArchiveHole]:
        """Return what it lacks between the first and the last change that it has."""
        stretches = self._stretches()
        holes = []
        for before, behind in pairwise(stretches):
            gap = self._gaps().get(behind[0][0])
            reason = gap.reason if gap is not None else _NO_ENTRY
            start, end = before[-1][1].end, behind[0][1].start
            holes.append(ArchiveHole(start, end, reason or "not known"))
        return holes

    def tables(self) -> list[ArchivedTable]:
        """Return what it has by day and table."""
        found: dict[tuple[str, str], list[ArchiveFile]] = {}
        for file in self.row_files():
            found.setdefault((file.day or "", file.table or ""), []).append(file)
        return [
            ArchivedTable(*key, sum(f.rows for f in files), sum(f.bytes for f in files), len(files))
            for key, files in sorted(found.items())
        ]

    def row_files(self) -> list[ArchiveFile]:
        """Return every file of rows that counts."""
        return [f for e in self._entries.values() for part in e.parts for f in part.files]

    def open(self, position: Position, upto: Position | None = None) -> "ArchiveReader":
        """Open the log behind a position.

        Args:
            position: where to begin.
            upto: up to where it is needed; None: to the end and on.

        Raises:
            PositionLostError: the archive does not have the position, or has a hole behind it.
        """
        return ArchiveReader(self, self._source, position, *self._names_behind(position, upto))

    def position_at(self, time_ms: int) -> Position:
        """Return the last position with all changes before it committed before a time.

        The logs of some databases know whole seconds, of which any part may lie behind the time:
        then all of that second lies behind the position.

        Args:
            time_ms: ms since the epoch.

        Raises:
            PositionLostError: everything that the archive has was committed later.
        """
        entries = list(self._entries.items())
        times = [ms for _, e in entries for ms in (e.from_ms, e.to_ms) if ms is not None]
        if all(ms % 1000 == 0 for ms in times):
            time_ms -= time_ms % 1000
        at = next(
            (i for i, (_, e) in enumerate(entries) if e.to_ms is not None and e.to_ms >= time_ms),
            None,
        )
        first = next((e.from_ms for _, e in entries if e.from_ms is not None), None)
        if first is None or first >= time_ms:
            raise PositionLostError(
                f"archive {self.folder.shown}: every change that it has was committed later"
                if first is not None
                else f"archive {self.folder.shown}: it holds no change yet"
            )
        if at is None:
            return entries[-1][1].end
        position: Position = entries[at][1].start
        for batch in self.batches(entries[at][0]):
            late = (batch.rows.column("ts_ms").to_numpy() >= time_ms).nonzero()[0]
            if not len(late):
                position = batch.end
                continue
            tx = int(batch.rows.column("tx")[int(late[0])].as_py())
            return batch.positions.after(tx - 1) if tx > 0 else position
        return position

    def batches(self, name: EntryName) -> Iterator[ChangeBatch]:
        """Yield the batches of an entry.

        Raises:
            PositionLostError: its files were deleted meanwhile, for their age.
            FatalError: they are damaged.
        """
        for part in self._entries[name].parts:
            yield from self.part_batches(part)

    def part_batches(self, part: ArchivePart) -> Iterator[ChangeBatch]:
        """Return the batches of a part, whose files are read at once; see ``batches``."""
        tables = [from_parquet(self.checked(file)) for file in (*part.files, part.batches)]
        return restored_batches(tables[:-1], tables[-1], self._source, self._schema)

    def checked(self, file: ArchiveFile) -> bytes:
        """Return what is in a file, if it is what was written."""
        try:
            data = self.folder.read(file.path)
        except FileNotFoundError:
            gone = f"archive {self.folder.shown}: {file.path} is not there any more"
            raise PositionLostError(gone) from None
        if hashlib.sha256(data).hexdigest() != file.sha256:
            raise FatalError(
                f"archive {self.folder.shown}: {file.path} is damaged: it is not what was written; "
                "restore it from a backup of the directory"
            )
        return data

    def names_after(self, name: EntryName | None) -> list[EntryName]:
        """Return the entries behind one."""
        names = list(self._entries)
        return names[bisect_right(names, name) :] if name is not None else names

    def entry(self, name: EntryName) -> ArchiveEntry:
        """Return an entry by its name."""
        return self._entries[name]

    def _names_behind(
        self, position: Position, upto: Position | None
    ) -> tuple[list[EntryName], EntryName | None]:
        """Return the entries behind a position, and the last one; None: a hole follows it."""
        for stretch in reversed(self._stretches()):
            if not stretch or not self._covers(position, stretch[0][1].start):
                continue
            behind = [name for name, entry in stretch if not self._covers(position, entry.end)]
            if not behind and not self._covers(stretch[-1][1].end, position):
                break
            is_last = stretch[-1][0] == next(reversed(self._entries))
            if not is_last and (upto is None or not self._covers(stretch[-1][1].end, upto)):
                hole = next(h for h in self.holes() if h.start == stretch[-1][1].end)
                raise PositionLostError(
                    f"archive {self.folder.shown}: it has a hole from {dict(hole.start)} to "
                    f"{dict(hole.end)} ({hole.reason}); begin behind it, or end before it"
                )
            return behind, stretch[-1][0] if is_last else None
        has = "; ".join(f"{dict(s.start)} to {dict(s.end)}" for s in self.spans()) or "nothing"
        lacks = f"archive {self.folder.shown}: it does not have {dict(position)}"
        raise PositionLostError(f"{lacks}; it has {has}")

    def _covers(self, at: Position, position: Position) -> bool:
        try:
            return self._source.covers(at, position)
        except PositionLostError:
            return False  # Of another history.

    def _stretches(self) -> list[list[tuple[EntryName, ArchiveEntry]]]:
        """Return the entries, apart where something is missing between two."""
        stretches: list[list[tuple[EntryName, ArchiveEntry]]] = []
        end: Position | None = None
        for name, entry in self._entries.items():
            if name.kind == "gap":
                end = None
                continue
            if end is None or entry.start != end:
                stretches.append([])
            stretches[-1].append((name, entry))
            end = entry.end
        return stretches

    def _gaps(self) -> dict[EntryName, ArchiveEntry]:
        """Return each gap by the entry that follows it."""
        found: dict[EntryName, ArchiveEntry] = {}
        gap: ArchiveEntry | None = None
        for name, entry in self._entries.items():
            if name.kind == "gap":
                gap = entry
            elif gap is not None:
                found[name], gap = gap, None
        return found

    def _read_entry(self, name: EntryName) -> ArchiveEntry | None:
        try:
            return self.folder.read_entry(name)
        except FileNotFoundError:
            return None  # Deleted for its age.

    def _schema(self, digest: str) -> TableSchema:
        if digest not in self._schemas:
            self._schemas[digest] = schema_from(self.folder.read(f"schemas/{digest}.json"))
        return self._schemas[digest]


@dataclass(frozen=True, slots=True)
class ArchiveSegment:
    """A batch of the archive."""

    batch: ChangeBatch

    @property
    def nbytes(self) -> int:
        """Return how many bytes of log it held."""
        return self.batch.nbytes

    @property
    def end(self) -> Position:
        """Return where reading may resume after its last complete transaction."""
        return self.batch.end


class ArchiveReader:
    """Reads the log from the archive as ``sources.contract.LogReader`` does.

    Behind the archive's end it waits for more; a hole that comes there is an error.

    Args:
        archive: what to read.
        source: whose log it is.
        position: where to begin.
        names: the entries that hold what lies behind it.
        last: the last of them, or where there are none the one that ends there; None: what comes
            behind them is not read.
    """

    def __init__(
        self,
        archive: Archive,
        source: Source,
        position: Position,
        names: Sequence[EntryName],
        last: EntryName | None,
    ) -> None:
        self._archive, self._source = archive, source
        self._known = KnownPart(source, position)
        self._names = list(names)
        self._last = last
        self._last_end: Position = position if last is None else archive.entry(last).end
        self._parts: list[ArchivePart] = []
        self._batches: Iterator[ChangeBatch] = iter(())
        self._look_at = 0.0
        self.end: Position = position
        """Up to where it has read."""
        self.is_caught_up = False
        """Whether there was nothing more in the archive when it looked last."""

    def read(self, timeout_s: float) -> ArchiveSegment | None:
        """Return the next batch, or None when none came within ``timeout_s``.

        Raises:
            RetryableError: the directory is away; the call may be repeated.
            PositionLostError: what follows is not in the archive.
            FatalError: it is damaged.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            batch = next(self._batches, None)
            rest = None if batch is None else self._known.rest(batch)
            if rest is not None:
                self.is_caught_up, self.end = False, rest.end
                return ArchiveSegment(rest)
            if batch is not None:
                continue
            if not self._parts and self._names:
                self._parts = list(self._archive.entry(self._names.pop(0)).parts)
                continue
            if self._parts:  # Taken out once it is read: the call may fail, and be repeated.
                self._batches = iter(list(self._archive.part_batches(self._parts[0])))
                del self._parts[0]
                continue
            self.is_caught_up = not self._follow()
            if not self.is_caught_up:
                continue
            if time.monotonic() >= deadline:
                return None
            time.sleep(min(_LOOK_S, max(0.0, deadline - time.monotonic())))

    def decode(self, segment: Any) -> ChangeBatch:
        """Return the batch of a segment that this reader read."""
        batch: ChangeBatch = segment.batch
        return batch

    def acknowledge(self, position: Position) -> None:
        """Do nothing: the archive keeps what it has for as long as its document says."""

    def close(self) -> None:
        """Drop what was read ahead."""
        self._names, self._parts, self._batches = [], [], iter(())

    def _follow(self) -> bool:
        """Look for further entries; return whether there are any."""
        if self._last is None or time.monotonic() < self._look_at:
            return False
        self._look_at = time.monotonic() + _LOOK_S
        self._archive.follow()
        names = self._archive.names_after(self._last)
        for name in names:
            entry, end = self._archive.entry(name), self._last_end
            if name.kind == "gap" or not self._source.covers(end, entry.start):
                raise PositionLostError(
                    f"archive {self._archive.folder.shown}: it has a hole behind {dict(end)}: "
                    f"{entry.reason or _NO_ENTRY}"
                )
            if entry.start != end:  # What was read last has become void, and is here once more.
                self._known = KnownPart(self._source, end)
            self._last, self._last_end = name, entry.end
        self._names = names
        return bool(names)
