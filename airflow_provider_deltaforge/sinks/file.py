"""Messages in files of JSON lines, safe on disk before a write returns.

A file never keeps half a line: what a crash tore off is cut when the file is opened again, and
what a failed write left is cut before the error is raised. One process writes a file at a time.
"""

import errno
import fcntl
import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.errors import AccessError, DeltaForgeError, RetryableError
from airflow_provider_deltaforge.events.message import Messages, Rejection
from airflow_provider_deltaforge.sinks.contract import Sink, SinkWriter
from airflow_provider_deltaforge.sinks.lines import json_lines

_OPEN_FILES_MAX = 128
_BLOCK = 65_536
_BAD_NAME = frozenset({errno.ENAMETOOLONG, errno.EINVAL, errno.EISDIR, errno.ENOTDIR})
_REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class FileSink(Sink):
    """One JSON text per line; keys, headers and tombstones are not written."""

    destination_field: ClassVar[str] = "path"
    writes_lines: ClassVar[bool] = True

    id: str = "file"
    """Names the sink in checkpoints, metrics and logs; unique in the pipeline."""
    path: str
    """File, or a template such as ``./out/${source.db}.${source.table}.jsonl``."""

    def open(self, pipeline: str) -> SinkWriter:
        """Return a writer; files are opened when the first message for them comes."""
        return FileWriter(self.id, _root(self.path))


class FileWriter:
    """Holds the files it writes open and locked."""

    def __init__(self, sink_id: str, root: Path) -> None:
        self._where = f"file sink {sink_id}"
        self._root = root
        self._files: OrderedDict[str, _LineFile] = OrderedDict()

    def write(self, messages: Messages) -> Sequence[Rejection]:
        """Append in order and wait for the disk; see ``SinkWriter``."""
        if not len(messages):
            return []
        rejections: list[Rejection] = []
        codes = np.asarray(messages.topics.indices)
        names = messages.topics.dictionary.to_pylist()
        for code in np.unique(codes):
            rows = np.flatnonzero(codes == code)
            part = messages if len(rows) == len(messages) else _part(messages, rows)
            reason = self._append(names[code], part)
            if reason:
                text = f"{self._where}: {reason}"
                rejections += [
                    Rejection(row, "routing", text) for row in part.event_rows.to_pylist()
                ]
        return rejections

    def close(self) -> None:
        """Close every file."""
        while self._files:
            self._files.popitem()[1].close()

    def _append(self, name: str, messages: Messages) -> str:
        """Append to one file; return why its name cannot be used, or nothing."""
        if "\0" in name or not _inside(self._root, Path(name)):
            return f"the path {name!r} leads out of {str(self._root)!r}"
        try:
            self._file(name).append(json_lines(messages))
        except OSError as error:
            if name in self._files:
                self._files.pop(name).close()
            if error.errno in _BAD_NAME:
                return f"the path {name!r} cannot be a file ({error.strerror})"
            raise self._error(name, error) from error
        return ""

    def _file(self, name: str) -> "_LineFile":
        if name in self._files:
            self._files.move_to_end(name)
            return self._files[name]
        while len(self._files) >= _OPEN_FILES_MAX:
            self._files.popitem(last=False)[1].close()
        self._files[name] = _LineFile.open(Path(name))
        return self._files[name]

    def _error(self, name: str, error: OSError) -> DeltaForgeError:
        text = f"{self._where}: {name}: {error.strerror}"
        if error.errno in _REFUSED:
            return AccessError(f"{text}; let this process write there")
        if error.errno == errno.EWOULDBLOCK:
            return RetryableError(f"{text}; another process writes this file, stop it first")
        return RetryableError(f"{text}; check the disk")


@dataclass
class _LineFile:
    """One open, locked file that ends with a whole line."""

    descriptor: int
    size: int

    @classmethod
    def open(cls, path: Path) -> "_LineFile":
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            size = _whole_lines(descriptor)
            os.ftruncate(descriptor, size)
            _sync_directory(path.parent)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor, size)

    def append(self, lines: bytes) -> None:
        try:
            rest = memoryview(lines)
            offset = self.size
            while rest:
                written = os.pwrite(self.descriptor, rest, offset)
                offset, rest = offset + written, rest[written:]
            os.fsync(self.descriptor)
        except BaseException:
            # The batch comes again as a whole: no line of it may stay, least of all half a line.
            os.ftruncate(self.descriptor, self.size)
            raise
        self.size = offset

    def close(self) -> None:
        os.close(self.descriptor)


def _whole_lines(descriptor: int) -> int:
    """Return the length of the file up to and including its last line break."""
    end = os.fstat(descriptor).st_size
    while end:
        start = max(0, end - _BLOCK)
        found = os.pread(descriptor, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _sync_directory(directory: Path) -> None:
    """Make the file's name survive a crash as well."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _root(template: str) -> Path:
    """Return the directory that no message may leave: the part of the path before any template."""
    fixed = template.partition("${")[0]
    place = _absolute(fixed or "./")
    return place if fixed.endswith("/") or not fixed else place.parent


def _inside(root: Path, path: Path) -> bool:
    return _absolute(path) != root and _absolute(path).is_relative_to(root)


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
