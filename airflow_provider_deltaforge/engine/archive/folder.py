"""The folder of one pipeline's archive: which files are in it, and which of them count.

    log/EPOCH-NUMBER.segment.json          one stretch of the log; nothing counts that none names
    log/EPOCH-0.opened.EPOCH-NUMBER.json   a lane began, behind the entry that it names
    log/EPOCH-NUMBER.gap.json              a stretch that the archive lacks
    log/EPOCH-NUMBER-PART.batches.parquet  where batches and transactions end
    schemas/HASH.json                      how a table looked
    day=…/table=…/EPOCH-NUMBER-PART.parquet
    archive.json                           whose archive it is
    .NAME.tmp                              a file that is being written, or was when a kill came

Entries are numbered within the epoch of the lane that writes them. A lane of a newer epoch names
the last entry that it goes on behind, so whatever a lane of an older one still writes is void.
"""

import json
import os
import re
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import pyarrow as pa
from pyarrow import fs
from pydantic import ValidationError

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint, reach
from airflow_provider_deltaforge.errors import FatalError, RetryableError
from airflow_provider_deltaforge.spec.settings import Settings
from airflow_provider_deltaforge.telemetry.redaction import redacted

Result = TypeVar("Result")
Kind = Literal["segment", "opened", "gap"]

_LOG = "log"
_S3_ATTEMPTS = 3
_ENTRY = re.compile(r"(\d{10})-(\d{10})\.(segment|opened|gap)(?:\.(\d{10})-(\d{10}))?\.json")
_FILE = re.compile(r"(\d{10})-(\d{10})-\d+\.(?:batches\.)?parquet")
_UNFINISHED = re.compile(r"\.(\d{10})-(\d{10})[-.].*\.tmp")
_OWNER = "archive.json"
_NO_ACCESS = re.compile("ACCESS_DENIED|INVALID_ACCESS_KEY|SIGNATURE_DOES_NOT_MATCH|EXPIRED_TOKEN")


@dataclass(frozen=True, order=True, slots=True)
class EntryName:
    """The name of an entry, in the order of the log.

    Attributes:
        epoch: of the lane that wrote it.
        number: within the epoch.
        kind: what it says.
        after: of one that says that a lane began: behind which entry, as (epoch, number).
    """

    epoch: int
    number: int
    kind: Kind
    after: tuple[int, int] | None = None

    @property
    def path(self) -> str:
        """Where it lies."""
        link = "" if self.after is None else ".{:010d}-{:010d}".format(*self.after)
        return f"{_LOG}/{self.stem}.{self.kind}{link}.json"

    @property
    def stem(self) -> str:
        """What the names of its files begin with."""
        return f"{self.epoch:010d}-{self.number:010d}"

    @classmethod
    def parse(cls, path: str) -> "EntryName | None":
        """Read a name; None: it is of something else."""
        match = _ENTRY.fullmatch(path.rpartition("/")[2])
        if match is None:
            return None
        after = (int(match[4]), int(match[5])) if match[4] else None
        return cls(int(match[1]), int(match[2]), match[3], after)  # type: ignore[arg-type]


class ArchiveFile(Settings):
    """A file that an entry names."""

    path: str
    rows: int
    bytes: int
    sha256: str
    day: str | None = None
    table: str | None = None


class ArchivePart(Settings):
    """What was written at once: files of rows, and the batches that they are of."""

    files: tuple[ArchiveFile, ...]
    batches: ArchiveFile


class ArchiveEntry(Settings):
    """One entry of the archive's log."""

    v: Literal[1] = 1
    start: dict[str, Any]
    end: dict[str, Any]
    from_ms: int | None = None
    """When the first change in it was committed, ms since the epoch; None without changes."""
    to_ms: int | None = None
    written_ms: int
    parts: tuple[ArchivePart, ...] = ()
    reason: str | None = None
    """Of a gap: why the archive lacks what lies between."""

    @property
    def files(self) -> list[ArchiveFile]:
        """Every file that it names."""
        return [file for part in self.parts for file in (*part.files, part.batches)]


def valid_names(names: Iterable[EntryName]) -> list[EntryName]:
    """Return the names that count, in the order of the log."""
    by_epoch: dict[int, list[EntryName]] = {}
    for name in names:
        by_epoch.setdefault(name.epoch, []).append(name)
    valid: list[list[EntryName]] = []
    epoch, upto = max(by_epoch, default=-1), None
    while epoch in by_epoch:
        entries = sorted(n for n in by_epoch[epoch] if upto is None or n.number <= upto)
        valid.append(entries)
        if not entries or entries[0].after is None:
            break
        epoch, upto = entries[0].after
    return [name for entries in reversed(valid) for name in entries]


class ArchiveFolder:
    """Reads and writes the files of one pipeline's archive. Safe to use from several threads.

    Args:
        directory: of the document.
        pipeline: whose folder in it.
    """

    def __init__(self, directory: str, pipeline: str) -> None:
        self._directory = directory
        self._pipeline = pipeline
        named = directory if directory.startswith("/") else directory.partition("?")[0]
        self.shown = f"{named.rstrip('/')}/{pipeline}"
        """The folder as people see it."""
        self._synced: set[str] = set()

    @cached_property
    def _place(self) -> tuple[fs.FileSystem, str]:
        filesystem: fs.FileSystem = fs.LocalFileSystem()
        root, address = self._directory, urlsplit(self._directory)
        if not root.startswith("/"):
            root = unquote(address.netloc + address.path)
        if address.scheme == "s3":
            filesystem = _s3(address.netloc, dict(parse_qsl(address.query)))
        return filesystem, f"{root.rstrip('/')}/{self._pipeline}"

    def names(self) -> list[EntryName]:
        """Return the names of all entries, void ones included."""
        found = map(EntryName.parse, self._listed(_LOG, recursive=False))
        return [name for name in found if name is not None]

    def names_behind(self, name: EntryName) -> list[EntryName]:
        """Return the names of entries that the same lane wrote behind one, void ones included."""
        found: list[EntryName] = []
        while True:
            number = (found[-1] if found else name).number + 1
            kinds: tuple[Kind, ...] = ("segment", "gap")
            following = [EntryName(name.epoch, number, kind) for kind in kinds]
            there = [each for each in following if self.exists(each.path)]
            if not there:
                return found
            found += there

    def data_files(self) -> dict[str, tuple[int, int]]:
        """Return (epoch, number) of files of rows or batches, and of unfinished ones, by path."""
        found: dict[str, tuple[int, int]] = {}
        for path in self._listed("", recursive=True):
            name = path.rpartition("/")[2]
            if (match := _FILE.fullmatch(name) or _UNFINISHED.fullmatch(name)) is not None:
                found[path] = int(match[1]), int(match[2])
        return found

    def owner(self) -> dict[str, Any] | None:
        """Return whose archive it is; None: there is none."""
        try:
            found: dict[str, Any] = json.loads(self.read(_OWNER))
        except FileNotFoundError:
            return None
        return found

    def begin(self, owner: dict[str, Any]) -> None:
        """Begin an archive: nothing else is written where none was begun."""
        self.write(_OWNER, json.dumps(owner).encode())

    def missing(self) -> RetryableError:
        """Return the error for an archive that is not there."""
        return RetryableError(
            f"spec.archive.directory: an archive at {self.shown} is not there: mount it, or put "
            "it back; to begin another one, name another directory"
        )

    def read_entry(self, name: EntryName) -> ArchiveEntry:
        """Return an entry.

        Raises:
            FatalError: it is damaged, or a later release wrote it.
            FileNotFoundError: it was deleted meanwhile.
        """
        try:
            return ArchiveEntry.model_validate_json(self.read(name.path))
        except ValidationError:
            raise FatalError(
                f"archive {self.shown}: {name.path} cannot be read: it was damaged, or a later "
                "release wrote it; restore it from a backup of the directory, or upgrade here"
            ) from None

    def write_entry(self, name: EntryName, entry: ArchiveEntry) -> None:
        """Write an entry: durable and whole, or not at all."""
        self.write(name.path, entry.model_dump_json(exclude_none=True).encode())

    def read(self, path: str) -> bytes:
        """Return what is in a file.

        Raises:
            FileNotFoundError: there is none.
            RetryableError: the directory is away.
        """

        def read() -> bytes:
            filesystem, root = self._place
            with filesystem.open_input_stream(f"{root}/{path}", compression=None) as stream:
                return bytes(stream.read())

        return self._call("read", read)

    def write(self, path: str, data: bytes | pa.Buffer) -> None:
        """Write a file: durable and whole, or not at all.

        Raises:
            RetryableError: it cannot be written now.
        """

        def write() -> None:
            filesystem, root = self._place
            if isinstance(filesystem, fs.LocalFileSystem):
                self._write_local(root, path, data)
                return
            # Nobody sees an object before all of it is there.
            with filesystem.open_output_stream(f"{root}/{path}", compression=None) as stream:
                stream.write(data)

        self._call("written", write)

    def write_once(self, path: str, data: bytes) -> None:
        """Write a file whose name says what is in it; one that is there already stays."""
        if not self.exists(path):
            self.write(path, data)

    def delete(self, path: str) -> None:
        """Delete a file that may be gone already."""

        def delete() -> None:
            filesystem, root = self._place
            with suppress(FileNotFoundError):
                filesystem.delete_file(f"{root}/{path}")
            if isinstance(filesystem, fs.LocalFileSystem):
                with suppress(OSError):  # Folders of days that have nothing more.
                    for folder in Path(path).parents[:-1]:
                        (Path(root) / folder).rmdir()

        self._call("changed", delete)

    def exists(self, path: str) -> bool:
        """Return whether a file is there."""

        def look() -> bool:
            filesystem, root = self._place
            return bool(filesystem.get_file_info(f"{root}/{path}").type == fs.FileType.File)

        return self._call("read", look)

    def _write_local(self, root: str, path: str, data: bytes | pa.Buffer) -> None:
        """Write a file in the very folder that ``archive.json`` is in, and sync all on its way.

        A folder that is not mounted any more must not be filled where it was: the source forgets
        what is written.
        """
        if path == _OWNER:
            Path(root).mkdir(parents=True, exist_ok=True)
        with ExitStack() as opened:
            try:
                folder = _open_folder(opened, root)
                if path != _OWNER:
                    os.stat(_OWNER, dir_fd=folder)
            except FileNotFoundError:
                raise self.missing() from None
            *folders, name = path.split("/")
            for depth, part in enumerate(folders):
                whole = "/".join(folders[: depth + 1])
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=folder)
                    self._synced.discard(whole)
                if whole not in self._synced:
                    os.fsync(folder)
                    self._synced.add(whole)
                folder = _open_folder(opened, part, folder)
            _write_file(folder, name, data)
            for parent in Path(root).parents if path == _OWNER else ():
                with suppress(PermissionError):  # Not one that was made here.
                    os.fsync(_open_folder(opened, str(parent)))

    def _listed(self, folder: str, *, recursive: bool) -> list[str]:
        def look() -> list[str]:
            filesystem, root = self._place
            base = f"{root}/{folder}".rstrip("/")
            selector = fs.FileSelector(base, allow_not_found=True, recursive=recursive)
            return [
                info.path.removeprefix(root).lstrip("/")
                for info in filesystem.get_file_info(selector)
                if info.type == fs.FileType.File
            ]

        return self._call("read", look)

    def _call(self, what: str, call: Callable[[], Result]) -> Result:
        try:
            return call()
        except FileNotFoundError as error:
            if what == "read":
                raise
            raise self._away(what, error) from None
        except (OSError, pa.ArrowException) as error:
            raise self._away(what, error) from None

    def _away(self, what: str, error: Exception) -> RetryableError:
        reason = redacted(str(error).partition("\n")[0])
        if _NO_ACCESS.search(reason):
            reason += "; look at the drivers' credentials, and at what they may do with the bucket"
        return RetryableError(f"spec.archive.directory: {self.shown} cannot be {what}: {reason}")


def _s3(bucket: str, options: dict[str, str]) -> fs.FileSystem:
    """Return an object store; its credentials come from this process's environment.

    Args:
        bucket: whose region is asked for if none is given, and no other server than Amazon's.
        options: as ``spec.policies.S3_OPTIONS`` names them.
    """
    if not options.keys() & {"region", "endpoint_override"}:
        options["region"] = fs.resolve_s3_region(bucket)
    return fs.S3FileSystem(
        **options,
        allow_delayed_open=True,  # One request for a file of usual size, and not three.
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_S3_ATTEMPTS),
    )


def _open_folder(opened: ExitStack, path: str, within: int | None = None) -> int:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY, dir_fd=within)
    opened.callback(os.close, handle)
    return handle


def _write_file(folder: int, name: str, data: bytes | pa.Buffer) -> None:
    """Write a file under another name first, and sync it and its name."""
    beside = f".{name}.tmp"
    try:
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666, dir_fd=folder)
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        reach(CrashPoint.ARCHIVE_FILE_UNFINISHED)
        os.replace(beside, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(beside, dir_fd=folder)
        raise
    os.fsync(folder)
