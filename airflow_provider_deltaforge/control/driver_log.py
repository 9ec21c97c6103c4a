"""The end of a driver's log, wherever the driver runs."""

import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from airflow_provider_deltaforge.control.launching.contract import Backend
from airflow_provider_deltaforge.control.pipelines import existing, now_ms
from airflow_provider_deltaforge.errors import DeltaForgeError
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.contract import Fence, Store
from airflow_provider_deltaforge.storage.records.control import ControlRecord
from airflow_provider_deltaforge.storage.records.driver_logs import (
    DriverLogs,
    LogTail,
    Process,
    shortened,
)
from airflow_provider_deltaforge.telemetry.redaction import redacted

LINES_MAX = 2000
_PROCESSES: tuple[Process, ...] = ("driver", "lane")
_CONTEXT_LINES = 20


def log_tail(store: Store, name: str, backend: Backend, lines: int) -> dict[str, Any]:
    """Return the end of the driver's log: its file's on this machine, else what it shipped.

    Returns:
        ``lines``, the ``host`` they come from, ``at_ms`` when they were shipped (None of a file),
        and ``missing``: in words why there are none.

    Raises:
        SpecError: there is no such pipeline.
    """
    record = existing(store, name).read()
    logs = DriverLogs(store, name)
    tail = logs.tail("driver")
    text = "" if _ships(record, tail) else _file_tail(record, backend, min(lines, LINES_MAX))
    if text:
        host = _host_of(record)
        return {"lines": text.splitlines(), "host": host, "at_ms": None, "missing": None}
    if tail is None:
        missing = "No driver of this pipeline has logged anything yet."
        return {"lines": [], "host": None, "at_ms": None, "missing": missing}
    shipped = logs.lines()[-lines:]
    return {"lines": shipped, "host": tail.host, "at_ms": tail.at_ms, "missing": None}


class LogFollower:
    """What a pipeline's driver and its lane log while they run, as they ship it to the store.

    The first look gives only the last few lines: an earlier task may have shown the others.

    Args:
        pipeline: whose driver.
        generation: drivers of earlier ones are left out.
        lines_max: so many lines of a process are given at once; of more, the last ones.
    """

    def __init__(self, pipeline: str, generation: int, lines_max: int) -> None:
        self._pipeline = pipeline
        self._generation = generation
        self._lines_max = lines_max
        self._seen: dict[Process, LogTail] = {}
        self._began = False

    def new_lines(self, store: Store) -> list[str]:
        """Return what was logged since the last look, and in words what of it is left out."""
        if not self._lines_max:
            return []
        logs, found = DriverLogs(store, self._pipeline), []
        for process in _PROCESSES:
            tail = logs.tail(process)
            if tail is not None and tail.generation >= self._generation:
                found += self._since(process, tail)
        self._began = True
        return found

    def _since(self, process: Process, tail: LogTail) -> list[str]:
        seen, self._seen[process] = self._seen.get(process), tail
        if seen is None or seen.driver != tail.driver:
            new, is_whole = tail.lines, True
        elif seen.at_ms == tail.at_ms:
            return []
        else:
            new, is_whole = _behind(seen.lines, tail.lines)
        kept = new[-(self._lines_max if self._began else min(_CONTEXT_LINES, self._lines_max)) :]
        if self._began and not is_whole:
            return ["(lines before this one are in the driver's own log only)", *kept]
        if self._began and len(kept) < len(new):
            return [f"({len(new) - len(kept)} lines are in the driver's own log only)", *kept]
        return kept


def _behind(seen: Sequence[str], lines: Sequence[str]) -> tuple[list[str], bool]:
    """Return what of some lines follows those seen before, and whether nothing is between them."""
    for start in range(len(seen)):
        common = len(seen) - start
        if common <= len(lines) and list(seen[start:]) == list(lines[:common]):
            return list(lines[common:]), True
    return list(lines), not seen


def keep_last_lines(store: Store, name: str, backend: Backend) -> None:
    """Ship the log of a driver that has ended, and could not ship its last lines itself.

    Only where its file is, and not over the lines of a driver that was started since.
    """
    with suppress(DeltaForgeError, OSError):
        slot = store.slot(names.CONTROL, name)
        record = existing(store, name).read()
        text = _file_tail(record, backend, LINES_MAX)
        if slot is None or record is None or not text:
            return
        tail = LogTail(
            driver="",
            generation=record.generation,
            host=_host_of(record),
            at_ms=now_ms(),
            lines=shortened(text.splitlines()),
        )
        unchanged = Fence(names.CONTROL, name, slot.version)
        store.transact([DriverLogs(store, name).put("driver", tail)], unchanged)


def _ships(record: ControlRecord | None, tail: LogTail | None) -> bool:
    """Return whether a driver on YARN ships what it and its lanes log.

    Its container has no line of lanes, which run in others.
    """
    handle = (record.handle if record is not None else None) or {}
    is_its_own = tail is not None and record is not None and tail.generation == record.generation
    return is_its_own and "application_id" in handle


def _host_of(record: ControlRecord | None) -> str:
    """Return where lines come from that a backend read: this machine, a pod, an application."""
    handle = (record.handle if record is not None else None) or {}
    return str(handle.get("pod") or handle.get("application_id") or socket.gethostname())


def _file_tail(record: ControlRecord | None, backend: Backend, lines: int) -> str:
    handle: Mapping[str, Any] | None = record.handle if record is not None else None
    if handle is None or handle.get("host") not in (None, socket.gethostname()):
        return ""
    return redacted(backend.logs_tail(handle, lines))
