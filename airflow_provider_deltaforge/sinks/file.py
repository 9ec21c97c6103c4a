"""Messages in files of JSON lines, safe on disk before a write returns.

A file never keeps half a line of ours: what a crash tore off is cut when the file is opened again,
and what a failed write left is cut before the error is raised. Half a line of somebody else stops
the sink. One driver writes a file at a time, with as many writers as its snapshot has.
"""

import errno
import os
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.errors import AccessError, DeltaForgeError, RetryableError
from airflow_provider_deltaforge.events.message import Messages, Rejection
from airflow_provider_deltaforge.sinks.contract import Sink, SinkWriter, WriterClaim, take_lease
from airflow_provider_deltaforge.sinks.line_file import LineFile, UnusableError
from airflow_provider_deltaforge.sinks.lines import json_lines

_OPEN_FILES_MAX = 128
_BAD_NAME = frozenset({errno.ENAMETOOLONG, errno.EINVAL, errno.EISDIR, errno.ENOTDIR, errno.ELOOP})
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
        return FileWriter(self.id, self.path)


class FileWriter:
    """Holds the files it writes open and locked."""

    def __init__(self, sink_id: str, template: str) -> None:
        self._where = f"file sink {sink_id}"
        self._fixed = template.partition("${")[0]
        self._is_fixed = self._fixed == template
        self._root = _root(self._fixed)
        self._files: OrderedDict[str, LineFile] = OrderedDict()
        self._claim: WriterClaim | None = None

    def fence(self, claim: WriterClaim) -> None:
        """Outlive former writers, and write within a lease; see ``FencedWriter``."""
        take_lease(claim)
        self._claim = claim

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
        parts = self._parts(name)
        if not parts:
            return f"the path {name!r} leads out of {str(self._root)!r}"
        try:
            file = self._file(name, parts)
            if self._claim is not None:
                # Asked with the file locked: who is frozen from here on keeps others out of it.
                self._claim.hold()
            file.append(json_lines(messages))
        except UnusableError as error:
            return f"the path {name!r} {error}"
        except OSError as error:
            if name in self._files:
                self._files.pop(name).close()
            if error.errno in _BAD_NAME:
                return f"the path {name!r} cannot be a file ({error.strerror})"
            raise self._error(name, error) from error
        return ""

    def _file(self, name: str, parts: tuple[str, ...]) -> LineFile:
        if name in self._files:
            self._files.move_to_end(name)
            return self._files[name]
        while len(self._files) >= _OPEN_FILES_MAX:
            self._files.popitem(last=False)[1].close()
        follow = self._is_fixed and name == self._fixed
        self._files[name] = LineFile.open(self._root, parts, follow=follow)
        return self._files[name]

    def _parts(self, name: str) -> tuple[str, ...]:
        """Return the path below the operator's directory; nothing if it leads out of it."""
        # What the operator wrote may climb; what the data put behind it may not.
        is_filled = name.startswith(self._fixed)
        below = name[len(self._fixed) :] if is_filled else name.lstrip("/")
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
