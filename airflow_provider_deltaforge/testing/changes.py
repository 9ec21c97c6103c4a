"""Change events from plain dictionaries."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA

_INSERT: Mapping[str, Any] = {
    "op": "c",
    "db": "shop",
    "schema": None,
    "table": "orders",
    "before": None,
    "after": b'{"id":1,"sku":"sku-1","total":"12.50"}',
    "key": b'{"id":1}',
    "ts_ms": 1_700_000_000_000,
    "tx": 0,
    "row": 0,
    "tx_id": "3E11FA47-71CA-11E1-9E33-C80AA9429562:5",
    "tx_end": False,
    "event_id": bytes(range(16)),
    "source_position": (
        b'"server_id":7,"gtid":"3E11FA47-71CA-11E1-9E33-C80AA9429562:5","file":"b.000002","pos":9'
    ),
    "schema_version": "sha256:" + "ab" * 32,
    "schema_sequence": 3,
    "ddl": None,
    "tags": None,
    "routing": None,
    "synthetic": None,
    "unchanged": None,
}


def change(**changed: Any) -> dict[str, Any]:
    """Return an insert into ``shop.orders`` as MySQL logs it, with some columns changed.

    Args:
        changed: columns of ``CHANGE_SCHEMA``; row images and keys are JSON texts as bytes.
    """
    return {**_INSERT, **changed}


def change_rows(changes: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """Return changes as the record batch that processors get, in ``CHANGE_SCHEMA``."""
    return pa.RecordBatch.from_pylist([dict(each) for each in changes], CHANGE_SCHEMA)
