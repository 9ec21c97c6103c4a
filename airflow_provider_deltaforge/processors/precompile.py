"""Compiles the kernels of the processors.

A lane does so itself before its first rows, or with them. Done ahead, once for each installation,
no pipeline has to wait for it: ``deltaforge precompile``.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA, OUTBOX
from airflow_provider_deltaforge.plugins import PROCESSORS
from airflow_provider_deltaforge.processors.contract import Processor

_SAMPLES: Mapping[str, Mapping[str, Any]] = {
    "contract": {"tables": [{"table": "t", "columns": {"a": {"type": "integer", "min": 0}}}]},
    "filter": {"fields": [{"path": "a", "op": "exists"}]},
    "flatten": {},
    "mask": {"rules": [{"columns": ["*.t.payload.b"], "action": "tokenise"}], "secret": "s" * 16},
    "outbox": {},
    "javascript": {"id": "sample", "inline": "function processBatch(events) { return events; }"},
}
"""Settings of the processors that have kernels: with them a small batch passes through each."""

_NEED_A_DRIVER = frozenset({"javascript"})


def precompile_for(processors: Iterable[Processor]) -> None:
    """Compile what these processors need and is not compiled yet."""
    asked = list(processors)
    for name in _SAMPLES:
        kind = PROCESSORS.load(name)
        if any(isinstance(processor, kind) for processor in asked):
            _pass_sample(name)


def precompile() -> None:
    """Compile what every processor needs that works without a driver."""
    for name in _SAMPLES:
        if name not in _NEED_A_DRIVER:
            _pass_sample(name)


def _pass_sample(name: str) -> None:
    worker = PROCESSORS.load(name)(**_SAMPLES[name]).open()
    try:
        worker.process(_sample())
    finally:
        worker.close()


def _sample() -> pa.RecordBatch:
    row = {
        "op": "c",
        "db": "d",
        "table": "t",
        "key": b'{"a":1}',
        "after": b'{"a":1,"payload":{"b":"c"}}',
        "ts_ms": 0,
        "tx": 0,
        "row": 0,
        "tx_end": True,
        "event_id": bytes(16),
    }
    return pa.RecordBatch.from_pylist([row, {**row, "row": 1, "schema": OUTBOX}], CHANGE_SCHEMA)
