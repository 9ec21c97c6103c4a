"""Messages in files of JSON lines, safe on disk before a write returns.

A file never keeps half a line of ours: what a crash tore off is cut when the file is opened again,
and what a failed write left is cut before the error is raised. Half a line of somebody else stops
the sink. One driver writes a file at a time, with as many writers as its snapshot has. A file that
lost its name, to a log rotation or to somebody's ``rm``, is left, and one is made anew.
"""

import errno
import fcntl
import os
import socket
import stat
import struct
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field

from airflow_provider_deltaforge.errors import (
    AccessError,
    DeltaForgeError,
    FatalError,
    RetryableError,
)
from airflow_provider_deltaforge.events.message import Messages, Rejection
from airflow_provider_deltaforge.sinks.contract import (
    Sink,
    SinkWriter,
    WriterClaim,
    take_lease,
)
from airflow_provider_deltaforge.sinks.file_reader import LineFileReader
from airflow_provider_deltaforge.sinks.lines import json_lines
from airflow_provider_deltaforge.sinks.reader_contract import SinkReader
from airflow_provider_deltaforge.storage.location import JOB
from airflow_provider_deltaforge.storage.sqlite import files_in_use

_OPEN_FILES_MAX = 128
_BAD_NAME = frozenset({errno.ENAMETOOLONG, errno.EINVAL, errno.EISDIR, errno.ENOTDIR, errno.ELOOP})
_REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})

_BLOCK = 65_536
_DATABASE = b"SQLite format 3\0"
_MARK_SUFFIX = ".deltaforge"
_JOB_FILES = frozenset(
    {"lock", "pid", "exit", "exit.part", "handle.json", "handle.part", "driver.log"}
)
_OWNER = struct.Struct("<120s")
_SPAN = struct.Struct("<QQ")
_LOCK_WAIT_S = 30.0
_LOCK_POLL_S = 0.005
_TAKE_ATTEMPTS = 20
_NAME_ATTEMPTS = 50


class UnusableError(Exception):
    """A name that no file of lines may have; the text says why."""


@dataclass
class LineFile:
    """One open file that ends with a whole line, shared with other threads of its driver."""

    path: Path
    follow: bool
    descriptor: int
    mark: int

    @classmethod
    def open(cls, root: Path, parts: tuple[str, ...], *, follow: bool) -> "LineFile":
        """Open a file below a directory, making what is missing.

        Args:
            root: the operator's directory; links in it are the operator's.
            parts: the path below it; from the data, unless ``follow``.
            follow: whether the file itself may be a link.

        Raises:
            UnusableError: it must not be written.
            BlockingIOError: another driver writes it.
            OSError: it cannot be opened.
        """
        name = parts[-1]
        if name.startswith(".") and name.endswith(_MARK_SUFFIX):
            raise UnusableError("is the name of what this sink remembers of a file")
        directory = _directory(root, parts[:-1])
        descriptors: list[int] = []
        try:
            _refuse_protected(directory, name)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
            link = 0 if follow else os.O_NOFOLLOW
            descriptors.append(os.open(name, flags | link, 0o644, dir_fd=directory))
            _refuse_content(descriptors[0])
            hidden = f".{name}{_MARK_SUFFIX}"
            descriptors.append(os.open(hidden, flags | os.O_NOFOLLOW, 0o600, dir_fd=directory))
            _take(descriptors[1])
            file = cls(root.joinpath(*parts), follow, *descriptors)
            with file._held():
                file._end()
            os.fsync(directory)  # The names survive a crash as well.
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        finally:
            os.close(directory)
        return file

    def append(self, lines: bytes | memoryview) -> bool:
        """Write whole lines and wait for the disk; what fails leaves nothing behind.

        Returns:
            Whether the path still names the file that they are in. If not, nobody may find them.
        """
        with self._held():
            if not (self._is_named() and self._is_marked()):
                return False
            end = self._end()
            os.pwrite(self.mark, _SPAN.pack(end, end + len(lines)), _OWNER.size)
            os.fdatasync(self.mark)
            try:
                rest, offset = memoryview(lines), end
                while rest:
                    written = os.pwrite(self.descriptor, rest, offset)
                    offset, rest = offset + written, rest[written:]
                os.fsync(self.descriptor)
            except BaseException:
                # The batch comes again as a whole: no line of it may stay.
                os.ftruncate(self.descriptor, end)
                raise
            # Renamed meanwhile, it may have been packed without these lines, and deleted.
            return self._is_named()

    def close(self) -> None:
        """Close the file, so that another driver may write it."""
        os.close(self.descriptor)
        os.close(self.mark)

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Hold the lock under which one writer at a time appends."""
        deadline = time.monotonic() + _LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(_LOCK_POLL_S)
        try:
            yield
        finally:
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)

    def _is_named(self) -> bool:
        """Return whether the path names this file."""
        present = _identity_of(self.path, follow=self.follow)
        return present == _identity(os.fstat(self.descriptor))

    def _is_marked(self) -> bool:
        """Return whether others find the lock, and what is remembered of a write."""
        hidden = self.path.with_name(f".{self.path.name}{_MARK_SUFFIX}")
        return _identity_of(hidden, follow=False) == _identity(os.fstat(self.mark))

    def _end(self) -> int:
        """Return where the file ends, once what a crash tore off is cut.

        Raises:
            FatalError: it ends with half a line that nobody can prove to be ours.
        """
        size = os.fstat(self.descriptor).st_size
        whole = _whole_lines(self.descriptor, size)
        if whole == size:
            return size
        begin, end = _span(self.mark)
        if not (begin <= whole and size <= end):
            raise FatalError(
                f"{self.path} ends with half a line, from byte {whole} on, that this sink did not "
                "write: end the line, or cut it off, and start again"
            )
        os.ftruncate(self.descriptor, whole)
        os.fsync(self.descriptor)
        return whole


def _directory(root: Path, parts: tuple[str, ...]) -> int:
    """Return the open directory of a file; no part of the way below ``root`` is a link."""
    root.mkdir(parents=True, exist_ok=True)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    directory = os.open(root, flags)
    try:
        for part in parts:
            with suppress(FileExistsError):
                os.mkdir(part, dir_fd=directory)
                os.fsync(directory)
            below = os.open(part, flags | os.O_NOFOLLOW, dir_fd=directory)
            os.close(directory)
            directory = below
    except BaseException:
        os.close(directory)
        raise
    return directory


def _refuse_protected(directory: int, name: str) -> None:
    """Refuse what belongs to the state store and to the job, whether it is there or not."""
    here = _identity(os.fstat(directory))
    with suppress(FileNotFoundError):
        found = _identity(os.stat(name, dir_fd=directory))
        if any(found == _identity_of(path) for path in files_in_use()):
            raise UnusableError("is a file of the state store")
    for path in files_in_use():
        if path.name == name and here == _identity_of(path.parent):
            raise UnusableError("is a file of the state store")
    if JOB in os.environ and name in _JOB_FILES and here == _identity_of(Path.cwd()):
        raise UnusableError("is a file of the driver")


def _refuse_content(descriptor: int) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise UnusableError("is no regular file")
    if os.pread(descriptor, len(_DATABASE), 0) == _DATABASE:
        raise UnusableError("is a database")


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _identity_of(path: Path, *, follow: bool = True) -> tuple[int, int] | None:
    try:
        return _identity(path.stat(follow_symlinks=follow))
    except OSError:
        return None


def _take(mark: int) -> None:
    """Lock a file for this driver, whose other writers may hold it as well.

    Raises:
        BlockingIOError: another driver holds it.
    """
    mine = _OWNER.pack(_me().encode()[: _OWNER.size])
    for _ in range(_TAKE_ATTEMPTS):
        with suppress(BlockingIOError):
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.pwrite(mark, mine, 0)
        with suppress(BlockingIOError):
            fcntl.flock(mark, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if os.pread(mark, _OWNER.size, 0) == mine:
                return
            fcntl.flock(mark, fcntl.LOCK_UN)
        time.sleep(_LOCK_POLL_S)
    raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK))


def _me() -> str:
    """Name this driver: a job is one session; any other driver is one process."""
    number = f"s{os.getsid(0)}" if JOB in os.environ else f"p{os.getpid()}"
    return f"{socket.gethostname()[:80]} {number}"


def _span(mark: int) -> tuple[int, int]:
    stored = os.pread(mark, _SPAN.size, _OWNER.size)
    begin, end = _SPAN.unpack(stored) if len(stored) == _SPAN.size else (0, -1)
    return begin, end


def _whole_lines(descriptor: int, end: int) -> int:
    """Return the length of the file up to and including its last line break."""
    while end:
        start = max(0, end - _BLOCK)
        found = os.pread(descriptor, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


class FileSink(Sink):
    """One JSON text per line; keys, headers and tombstones are not written."""

    destination_field: ClassVar[str] = "path"
    writes_lines: ClassVar[bool] = True

    id: str = "file"
    """Names the sink in checkpoints, metrics and logs; unique in the pipeline."""
    path: str = Field(min_length=1)
    """File, or a template such as ``./out/${source.db}.${source.table}.jsonl``. Each may be renamed
    or deleted at any time, as log rotation does: the next batch goes into a new one."""

    def dataset(self) -> tuple[str, str]:
        """Return how lineage calls what it writes to."""
        return "file", self.path

    def open(self, pipeline: str) -> SinkWriter:
        """Return a writer; files are opened when the first message for them comes."""
        return FileWriter(self.id, self.path)

    def open_reader(self, pipeline: str) -> SinkReader:
        """Return a reader of the files."""
        return LineFileReader(self.id)


class FileWriter:
    """Holds the files it writes open and locked.

    Args:
        sink_id: names the sink in errors.
        template: the path, with placeholders.
        open_files_max: further files close the one that was used longest ago.
    """

    def __init__(self, sink_id: str, template: str, open_files_max: int = _OPEN_FILES_MAX) -> None:
        self._where = f"file sink {sink_id}"
        self._fixed = template.partition("${")[0]
        self._is_fixed = self._fixed == template
        self._root = _root(self._fixed)
        self._files: OrderedDict[str, LineFile] = OrderedDict()
        self._open_files_max = open_files_max
        self._claim: WriterClaim | None = None
        self._batch: Messages | None = None
        self._done: dict[int, list[Rejection]] = {}
        """What each file refused that has the rest of the batch, by its code there."""

    def fence(self, claim: WriterClaim) -> None:
        """Outlive former writers, and write within a lease; see ``FencedWriter``."""
        take_lease(claim)
        self._claim = claim

    def write(self, messages: Messages) -> Sequence[Rejection]:
        """Append in order and wait for the disk; see ``SinkWriter``."""
        if not len(messages):
            return []
        if self._batch is None or not self._batch.same_as(messages):
            self._batch, self._done = messages, {}
        codes = np.asarray(messages.topics.indices)
        names = messages.topics.dictionary.to_pylist()
        for code in np.unique(codes).tolist():
            if code in self._done:
                continue  # In an attempt before, which another file stopped.
            rows = np.flatnonzero(codes == code)
            part = messages if len(rows) == len(messages) else _part(messages, rows)
            reason = self._append(names[code], part)
            refused = part.event_rows.to_pylist() if reason else []
            text = f"{self._where}: {reason}"
            self._done[code] = [Rejection(row, "routing", text) for row in refused]
        rejections = [rejection for each in self._done.values() for rejection in each]
        self._batch, self._done = None, {}
        return rejections

    def close(self) -> None:
        """Close every file."""
        while self._files:
            self._files.popitem()[1].close()

    def _append(self, name: str, messages: Messages) -> str:
        """Append to one file; return why its name cannot be used, or nothing."""
        parts = self._parts(name)
        if not parts:
            return f"the path {name!r} leads out of {str(self._root)!r}"
        try:
            self._append_lines(name, parts, json_lines(messages))
        except UnusableError as error:
            return f"the path {name!r} {error}"
        except OSError as error:
            if name in self._files:
                self._files.pop(name).close()
            if error.errno in _BAD_NAME:
                return f"the path {name!r} cannot be a file ({error.strerror})"
            raise self._error(name, error) from error
        return ""

    def _append_lines(self, name: str, parts: tuple[str, ...], lines: memoryview) -> None:
        file = self._file(name, parts)
        for _ in range(_NAME_ATTEMPTS):
            if self._claim is not None:
                # Asked with the file locked: who is frozen from here on keeps others out of it.
                self._claim.hold()
            if file.append(lines):
                return
            file = self._file(name, parts, nameless=file)
        raise OSError(errno.ESTALE, "it is renamed or deleted whenever it is written")

    def _file(
        self, name: str, parts: tuple[str, ...], nameless: LineFile | None = None
    ) -> LineFile:
        """Return the open file of a name; a new one in place of one that has lost it."""
        if name in self._files and nameless is None:
            self._files.move_to_end(name)
            return self._files[name]
        while nameless is None and len(self._files) >= self._open_files_max:
            self._files.popitem(last=False)[1].close()
        follow = self._is_fixed and name == self._fixed
        self._files[name] = LineFile.open(self._root, parts, follow=follow)
        if nameless is not None:
            nameless.close()  # Not before: its lock keeps other drivers out.
        return self._files[name]

    def _parts(self, name: str) -> tuple[str, ...]:
        """Return the path below the operator's directory; nothing if it leads out of it."""
        # What the operator wrote may climb; what the data put behind it may not.
        below = name[len(self._fixed) :] if name.startswith(self._fixed) else name.lstrip("/")
        odd = {".", "..", ""} if not self._is_fixed else {".", ".."}
        if "\0" in name or odd & set(below.split("/")):
            return ()
        path = _absolute(name)
        if path == self._root or not path.is_relative_to(self._root):
            return ()
        return path.relative_to(self._root).parts

    def _error(self, name: str, error: OSError) -> DeltaForgeError:
        text = f"{self._where}: {name}: {error.strerror}"
        if error.errno in _REFUSED:
            return AccessError(f"{text}; let this process write there")
        if error.errno == errno.EWOULDBLOCK:
            return RetryableError(f"{text}; another driver writes this file, stop it first")
        return RetryableError(f"{text}; check the disk")


def _root(fixed: str) -> Path:
    """Return the directory that no message may leave: the part of the path before any template."""
    place = _absolute(fixed or "./")
    return place if fixed.endswith("/") or not fixed else place.parent


def _absolute(path: str | Path) -> Path:
    # Not resolved through links: those are the operator's, names come from the data.
    return Path(os.path.normpath(Path.cwd() / path))


def _part(messages: Messages, rows: "np.typing.NDArray[np.intp]") -> Messages:
    taken = pa.array(rows)
    return Messages(
        topics=messages.topics.take(taken),
        keys=messages.keys.take(taken),
        values=messages.values.take(taken),
        headers=None,
        event_ids=messages.event_ids.take(taken),
        event_rows=messages.event_rows.take(taken),
    )
