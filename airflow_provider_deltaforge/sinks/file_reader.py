"""Reads files of lines back."""

import os
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.columns.binary_columns import column_of
from airflow_provider_deltaforge.errors import AccessError, FatalError, RetryableError
from airflow_provider_deltaforge.sinks.reader_contract import HeldMessages

_BLOCK = 16 << 20
_NEW_LINE = 10


class LineFileReader:
    """Reads whole lines; see ``SinkReader``.

    Args:
        sink_id: names the sink in errors.
    """

    def __init__(self, sink_id: str) -> None:
        self.notes: list[str] = []
        self._where = f"file sink {sink_id}"
        self._reached: dict[str, tuple[int, int]] = {}

    def read(self, topics: Collection[str]) -> Iterator[HeldMessages]:
        """Yield the lines that were not read before; see ``SinkReader``."""
        for number, path in enumerate(sorted(topics)):
            try:
                yield from self._lines(path, number)
            except FileNotFoundError:
                note = f"there is no file {path} here, where the verification runs"
                if note not in self.notes:
                    self.notes.append(note)
            except PermissionError as error:
                raise AccessError(
                    f"{self._where}: {path}: {error.strerror}; let this process read there"
                ) from error
            except OSError as error:
                raise RetryableError(f"{self._where}: {path}: {error.strerror}") from error

    def close(self) -> None:
        """Nothing stays open."""

    def _lines(self, path: str, number: int) -> Iterator[HeldMessages]:
        with Path(path).open("rb") as file:
            stat = os.fstat(file.fileno())
            inode, at = self._reached.get(path, (stat.st_ino, 0))
            if inode != stat.st_ino or stat.st_size < at:
                raise FatalError(
                    f"{self._where}: {path} was cut or replaced while it was read; verify again"
                )
            size = _BLOCK
            while at < stat.st_size:
                file.seek(at)
                block = file.read(min(size, stat.st_size - at))
                whole = block.rfind(b"\n") + 1
                if not whole and len(block) == stat.st_size - at:
                    break  # Half a line, which is being written.
                if not whole:
                    size *= 2
                    continue
                at += whole
                self._reached[path] = (stat.st_ino, at)
                yield _held(path, number, block[:whole])
            self._reached.setdefault(path, (stat.st_ino, at))


def _held(path: str, number: int, lines: bytes) -> HeldMessages:
    data = np.frombuffer(lines, np.uint8)
    ends = np.flatnonzero(data == _NEW_LINE) + 1
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    # The line's end stays in the text: it is white space to JSON.
    values = column_of(data, offsets)
    return HeldMessages(path, number, pa.nulls(len(ends), pa.binary()), values)
