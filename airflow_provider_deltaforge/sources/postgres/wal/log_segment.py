"""A piece of the write-ahead log as ``pgoutput`` sends it: borders known, rows not decoded yet."""

from dataclasses import dataclass
from typing import Any

from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.sources.postgres.positions import WalTxPositions
from airflow_provider_deltaforge.sources.postgres.wal.decode_plans import WalDecodePlans

INSERT, UPDATE, DELETE = 0, 1, 2

ROW_START, ROW_STOP, ROW_KIND, ROW_TX, ROW_PLAN, ROW_INDEX = range(6)
"""Columns of the table of rows: where the message's tuple data begins (the byte behind the
relation's id) and ends in ``data``, INSERT, UPDATE or DELETE, ordinal of the transaction in the
segment, ordinal of the plan, and index of the row in its transaction, rows nobody captures counted.
"""
ROW_COLUMNS = 6


@dataclass(frozen=True, slots=True)
class Marker:
    """An event that is no row: a truncated table, a logical message, a schema change.

    Attributes:
        tx: ordinal of its transaction in the segment.
        before: it comes before the segment's row of this number.
        index: its index in the transaction, counted together with the rows.
        op: ``t``, ``c`` for a logical message, or ``ddl``.
        schema: of the table; ``__wal_message`` for a logical message.
        table: the table, or a message's prefix.
        after: JSON text of the row image, of a logical message.
        ddl: JSON text of the ``ddl`` column.
    """

    tx: int
    before: int
    index: int
    op: str
    schema: str
    table: str
    after: bytes | None = None
    ddl: bytes | None = None


@dataclass(frozen=True, slots=True)
class WalSegment:
    """What ``LogReader.read`` returns; picklable, and complete for decoding.

    Attributes:
        nbytes: bytes of log.
        data: uint8, the log as it was received; ``rows`` says where tuples are in it.
        rows: int64 (captured rows, ROW_COLUMNS).
        plans: how to decode the tables.
        positions: transactions, and the position before the first.
        db: the database's real name.
        markers: events that are no rows, in order.
        open_tx: the last transaction goes on in the next segment.
        continues: the first transaction began in an earlier segment.
    """

    nbytes: int
    data: Any
    rows: Any
    plans: WalDecodePlans
    positions: WalTxPositions
    db: str
    markers: tuple[Marker, ...] = ()
    open_tx: bool = False
    continues: bool = False

    @property
    def end(self) -> Position:
        """Where reading may resume after the segment's last complete transaction."""
        return self.positions.end
