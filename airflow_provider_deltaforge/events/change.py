"""The unit that flows: change events as one Arrow record batch, never a list of objects."""

from dataclasses import dataclass, replace

import pyarrow as pa

from airflow_provider_deltaforge.events.position import Position, Positions
from airflow_provider_deltaforge.events.schema import TableSchema

__all__ = [
    "CHANGE_SCHEMA",
    "OUTBOX",
    "ROUTING",
    "TEXT",
    "ChangeBatch",
    "Position",
    "Positions",
    "joined",
]

TEXT = pa.dictionary(pa.int32(), pa.utf8())

OUTBOX = "__outbox"
"""Stands in the column ``schema`` of an event that is an outbox message."""

ROUTING = pa.struct(
    [
        ("topic", pa.utf8()),
        ("key", pa.utf8()),
        ("headers", pa.map_(pa.utf8(), pa.utf8())),
        ("raw_payload", pa.bool_()),
    ]
)
"""Where a processor sent an event; a null field means the sink's own template applies."""

CHANGE_SCHEMA = pa.schema(
    [
        pa.field("op", TEXT, nullable=False),  # c u d r t, and ddl for other schema changes
        pa.field("db", TEXT, nullable=False),
        pa.field("schema", TEXT),  # null where the source has no schemas (MySQL, Turso)
        pa.field("table", TEXT, nullable=False),
        pa.field("before", pa.binary()),  # row image as JSON text, columns in table order
        pa.field("after", pa.binary()),
        pa.field("key", pa.binary()),  # primary key as canonical JSON text; null without one
        pa.field("ts_ms", pa.int64(), nullable=False),  # source commit time, ms since epoch
        pa.field("tx", pa.int32(), nullable=False),  # ordinal of the transaction in this batch
        pa.field("row", pa.int32(), nullable=False),  # index in its transaction, of all rows
        pa.field("tx_id", TEXT),  # the source's own name: GTID or xid
        pa.field("tx_end", pa.bool_(), nullable=False),  # last captured row of its transaction
        pa.field("event_id", pa.binary(16), nullable=False),  # the same on every replay
        pa.field("source_position", pa.dictionary(pa.int32(), pa.binary())),
        pa.field("schema_version", TEXT),
        pa.field("schema_sequence", pa.int64()),
        pa.field("ddl", pa.binary()),  # JSON text {"sql": ..., "database": ...}
        pa.field("tags", pa.list_(pa.utf8())),
        pa.field("routing", ROUTING),
        pa.field("synthetic", pa.utf8()),  # id of the processor that made this event
        pa.field("former_key", pa.binary()),  # the key before an update that changed it
        pa.field("unchanged", pa.binary()),  # JSON list: which columns of after are UNCHANGED
    ]
)
"""``source_position`` is the inside of a JSON object, without braces, for example
``"server_id":1,"gtid":"UUID:7","file":"binlog.000002","pos":1234``; null for snapshot rows.
``former_key`` is filled in by the engine, and only where a sink needs it: sources leave it null."""


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """Change events in commit order, and the positions they end at.

    ``end`` is the resume position after the last *complete* transaction of the batch; a batch
    that stops inside a transaction has ``open_tx`` set and its last ``tx`` ordinal is not covered
    by ``end``. A batch without rows still moves the position.
    """

    rows: pa.RecordBatch
    positions: Positions
    end: Position
    connector: str
    nbytes: int
    open_tx: bool = False
    continues: bool = False
    """The first transaction began in an earlier batch; a batch that goes on with an open
    transaction starts again at ordinal 0."""
    schemas: "tuple[TableSchema, ...]" = ()
    """The schemas in force for rows of this batch, first use first."""

    def slice(self, start: int, stop: int) -> "ChangeBatch":
        """Return rows ``start`` to ``stop``; the positions stay those of the whole batch."""
        share = (stop - start) / max(1, self.rows.num_rows)
        part = self.rows.slice(start, stop - start)
        return replace(self, rows=part, nbytes=int(self.nbytes * share))


def joined(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Return record batches as one."""
    if len(parts) == 1:
        return parts[0]
    table = pa.Table.from_batches(parts).unify_dictionaries().combine_chunks()
    return table.to_batches()[0]
