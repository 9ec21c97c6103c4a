"""The end of what a pipeline's driver logged, for people on other machines.

A driver replaces it now and then, so it is short. A lane on an executor of a cluster has one of its
own, beside the driver's.
"""

import re
from collections.abc import Iterable
from itertools import accumulate
from typing import Literal

from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.contract import Put, Store
from airflow_provider_deltaforge.storage.records.record import Record
from airflow_provider_deltaforge.telemetry.redaction import redacted

LINES_MAX = 300
_LINE_MAX = 2000
_CHARACTERS_MAX = 1 << 16

_TIME = re.compile(r"(?:^|\"time\":\")(\d{4}-\d\d-\d\dT[\d:.]+Z)")

Process = Literal["driver", "lane"]


class LogTail(Record):
    """What one process logged last."""

    v: Literal[1] = 1
    driver: str
    """The token of the driver's start."""
    generation: int
    host: str
    at_ms: int
    lines: list[str]


class DriverLogs:
    """The log tails of one pipeline in a store."""

    def __init__(self, store: Store, pipeline: str) -> None:
        self._store = store
        self._pipeline = pipeline

    def tail(self, process: Process) -> LogTail | None:
        """Return what a process logged last."""
        text = self._store.get(names.LOGS, f"{self._pipeline}/{process}")
        if text is None:
            return None
        return LogTail.from_stored(text, f"the log of pipeline {self._pipeline!r}")

    def put(self, process: Process, tail: LogTail) -> Put:
        """Return the write that replaces it, for a fenced transaction."""
        text = tail.model_dump_json().encode()
        return Put(names.LOGS, f"{self._pipeline}/{process}", text)

    def lines(self) -> list[str]:
        """Return the lines of all processes by their time; one without a time follows its own."""
        tails = [self.tail("driver"), self.tail("lane")]
        timed = [entry for tail in tails if tail is not None for entry in _timed(tail.lines)]
        return [line for _, line in sorted(timed, key=lambda entry: entry[0])]


def shortened(lines: Iterable[str]) -> list[str]:
    """Return the last of some lines: as many as are kept, cut to a length, and without secrets."""
    # Half characters, which a log may hold, cannot be stored.
    kept = [redacted(line)[:_LINE_MAX].encode(errors="replace").decode() for line in lines]
    lengths = accumulate(len(line) + 1 for line in reversed(kept))
    count = sum(length <= _CHARACTERS_MAX for length in lengths)
    return kept[-min(count, LINES_MAX) :] if count else []


def _timed(lines: Iterable[str]) -> list[tuple[str, str]]:
    timed, at = [], ""
    for line in lines:
        found = _TIME.search(line)
        at = found[1] if found else at
        timed.append((at, line))
    return timed
