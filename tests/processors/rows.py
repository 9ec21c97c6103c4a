"""Change events for processors, from little."""

import json

import pyarrow as pa

from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA
from airflow_provider_deltaforge.testing.changes import change, change_rows


def rows(*changes):
    """Return a batch, a slice of a larger one; each change is what differs from an insert."""
    filled = [
        {
            "op": "c",
            "db": "shop",
            "table": "orders",
            "ts_ms": 1_700_000_000_000 + n,
            "tx": n,
            "row": 0,
            "tx_end": True,
            "event_id": n.to_bytes(16, "big"),
            **change,
        }
        for n, change in enumerate([{"after": b'{"a":"around"}'}, *changes, {}])
    ]
    return pa.RecordBatch.from_pylist(filled, CHANGE_SCHEMA).slice(1, len(changes))


def images(*after, before=None):
    """Return a batch of updates with these new images."""
    earlier = before or [None] * len(after)
    return rows(
        *({"op": "u", "before": b, "after": a} for b, a in zip(earlier, after, strict=True))
    )


def rows_of(*images, **more):
    """Return the inserts of one transaction, each with a row as its new image."""
    return change_rows(
        [
            change(
                after=image if image is None else json.dumps(image, separators=(",", ":")).encode(),
                event_id=bytes([at]) * 16,
                row=at,
                **more,
            )
            for at, image in enumerate(images)
        ]
    )
