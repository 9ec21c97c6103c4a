"""One file of lines: where it may lie, who writes it, and which half of a line may be cut.

Names come from the data. Below the directory that the operator named, no component may be a link,
and what belongs to the state store, or is a database, is never opened.

Beside each file lies a small one, ``.NAME.deltaforge``. It is locked by whoever writes, and says
where the last write began and was to end: only what lies between is ours to cut.
"""

import errno
import fcntl
import os
import socket
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_deltaforge.errors import FatalError
from airflow_provider_deltaforge.storage.location import JOB
from airflow_provider_deltaforge.storage.sqlite import files_in_use

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


class UnusableError(Exception):
    """A name that no file of lines may have; the text says why."""


@dataclass
class LineFile:
    """One open file that ends with a whole line, shared with other threads of its driver."""

    path: Path
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
            file = cls(root.joinpath(*parts), *descriptors)
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

    def append(self, lines: bytes) -> None:
        """Write whole lines and wait for the disk; what fails leaves nothing behind."""
        with self._held():
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

    def close(self) -> None:
        """Let go of the file; another driver may write it then."""
        os.close(self.descriptor)
        os.close(self.mark)

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Let one writer append at a time."""
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


def _identity_of(path: Path) -> tuple[int, int] | None:
    try:
        return _identity(path.stat())
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
    told = os.pread(mark, _SPAN.size, _OWNER.size)
    begin, end = _SPAN.unpack(told) if len(told) == _SPAN.size else (0, -1)
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
