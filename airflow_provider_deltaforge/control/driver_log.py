"""The end of a driver's log, wherever the driver runs."""

import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from airflow_provider_deltaforge.control.launching.contract import Backend
from airflow_provider_deltaforge.control.pipelines import existing, now_ms
from airflow_provider_deltaforge.errors import DeltaForgeError
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.contract import Fence, Store
from airflow_provider_deltaforge.storage.records.control import ControlRecord
from airflow_provider_deltaforge.storage.records.driver_logs import DriverLogs, LogTail, shortened
from airflow_provider_deltaforge.telemetry.redaction import redacted

LINES_MAX = 2000


def log_tail(store: Store, name: str, backend: Backend, lines: int) -> dict[str, Any]:
    """Return the end of the driver's log: its file's on this machine, else what it shipped.

    Returns:
        ``lines``, the ``host`` they come from, ``at_ms`` when they were shipped (None of a file),
        and ``missing``: in words why there are none.

    Raises:
        SpecError: there is no such pipeline.
    """
    record = existing(store, name).read()
    text = _file_tail(record, backend, min(lines, LINES_MAX))
    if text:
        host = socket.gethostname()
        return {"lines": text.splitlines(), "host": host, "at_ms": None, "missing": None}
    logs = DriverLogs(store, name)
    tail = logs.tail("driver")
    if tail is None:
        missing = "No driver of this pipeline has logged anything yet."
        return {"lines": [], "host": None, "at_ms": None, "missing": missing}
    shipped = logs.lines()[-lines:]
    return {"lines": shipped, "host": tail.host, "at_ms": tail.at_ms, "missing": None}


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
            host=socket.gethostname(),
            at_ms=now_ms(),
            lines=shortened(text.splitlines()),
        )
        unchanged = Fence(names.CONTROL, name, slot.version)
        store.transact([DriverLogs(store, name).put("driver", tail)], unchanged)


def _file_tail(record: ControlRecord | None, backend: Backend, lines: int) -> str:
    handle: Mapping[str, Any] | None = record.handle if record is not None else None
    if handle is None or handle.get("host") not in (None, socket.gethostname()):
        return ""
    return redacted(backend.logs_tail(handle, lines))
