"""Debezium's envelope as its JSON converter writes it with schemas, but without the schema.

Readers take the event out of ``payload``, as they do with ``schemas.enable=true``; with ``false``,
the converter writes the event alone.
"""

from typing import ClassVar

import pyarrow as pa

from airflow_provider_deltaforge.columns.row_texts import join
from airflow_provider_deltaforge.envelopes.contract import Envelope, EventPaths, Origin
from airflow_provider_deltaforge.envelopes.native import native_pieces
from airflow_provider_deltaforge.envelopes.shapes import DEBEZIUM
from airflow_provider_deltaforge.events.shapes import Shape


class DebeziumEnvelope(Envelope):
    """``{"schema":null,"payload":EVENT}`` with the native event as payload."""

    shape: ClassVar[Shape | None] = DEBEZIUM
    paths: ClassVar[EventPaths | None] = EventPaths(
        ("payload",),
        tuple(("payload", "source", name) for name in ("db", "schema", "table")),
        ("payload", "source", "name"),
    )
    splits_key_changes: ClassVar[bool] = True

    def wrap(self, rows: pa.RecordBatch, origin: Origin) -> pa.BinaryArray:
        """Return each change event inside the two keys."""
        pieces = [b'{"schema":null,"payload":', *native_pieces(rows, origin), b"}"]
        return join(pieces, rows.num_rows)
