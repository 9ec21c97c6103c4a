"""A processor whose work a test plants: functions by name, called with each batch."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.events.message import Rejection
from airflow_provider_deltaforge.plugins import PROCESSORS
from airflow_provider_deltaforge.processors.contract import Processed, Processor

WORKS: dict[str, Callable[[pa.RecordBatch], Processed]] = {}
CLOSED: list[str] = []


class Planted(Processor):
    """Does what is planted under its name; closes once."""

    id: str
    work: str = ""

    def open(self):
        return _Worker(self.id, WORKS[self.work or self.id])


class _Worker:
    def __init__(self, name, work):
        self._name = name
        self._work = work

    def process(self, rows):
        return self._work(rows)

    def close(self):
        CLOSED.append(self._name)


def plant(monkeypatch, **works):
    """Make functions known as works, and the type ``planted`` for documents."""
    monkeypatch.setitem(
        PROCESSORS.shipped, "planted", f"{Planted.__module__}:{Planted.__qualname__}"
    )
    for name, work in works.items():
        monkeypatch.setitem(WORKS, name, work)
    CLOSED.clear()


def keeping(chosen):
    """Return a work that keeps the rows for which ``chosen(after)`` holds."""

    def work(rows):
        kept = np.flatnonzero([chosen(text) for text in rows["after"].to_pylist()])
        at = pa.array(kept, pa.int32())
        return Processed(rows.take(at), origins=at, counts={"dropped": rows.num_rows - len(at)})

    return work


def doubling(rows):
    """Make a copy behind every event."""
    at = pa.array(np.repeat(np.arange(rows.num_rows, dtype=np.int32), 2))
    made = pa.array(np.tile([False, True], rows.num_rows))
    return Processed(rows.take(at), origins=at, made=made)


def refusing(chosen):
    """Return a work that refuses the rows for which ``chosen(after)`` holds."""

    def work(rows):
        bad = [bool(chosen(text)) for text in rows["after"].to_pylist()]
        kept = pa.array(np.flatnonzero(~np.array(bad, bool)), pa.int32())
        refused = [
            Rejection(row, "processor", "planted") for row, is_bad in enumerate(bad) if is_bad
        ]
        return Processed(rows.take(kept), origins=kept, rejections=refused)

    return work
