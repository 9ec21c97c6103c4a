"""A segment of the log: transactions and tables are known, rows are not decoded yet."""

from dataclasses import dataclass
from typing import Any

from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.sources.mysql.binlog.decode_plans import DecodePlans
from airflow_provider_deltaforge.sources.mysql.positions import BinlogTxPositions


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """A DDL statement or a truncated table.

    Attributes:
        tx: ordinal of its transaction in the segment.
        before: it comes before the segment's row event of this number.
        op: ``ddl`` or ``t``.
        db: database it ran in, or of the truncated table.
        table: ``_ddl``, or the truncated table.
        text: JSON text of the ``ddl`` column.
        schemas: how captured tables look behind it, where the log will not say.
    """

    tx: int
    before: int
    op: str
    db: str
    table: str
    text: bytes
    schemas: tuple[TableSchema, ...] = ()


@dataclass(frozen=True, slots=True)
class BinlogSegment:
    """What ``LogReader.read`` returns; picklable, and complete for decoding.

    Attributes:
        nbytes: bytes of log.
        data: uint8, events one behind the other, each from its header on, without checksum.
        rows: int64 (row events, ROW_COLUMNS), see ``framing_kernel``.
        map_plans: int64, for each table map its ordinal in ``plans``.
        plans: how to decode the tables.
        positions: transactions, and the position before the first.
        changes: schema changes, in order.
        row_base: rows of the first transaction in earlier segments.
        skip: rows of the first transaction that were handed out before a reconnect.
        open_tx: the last transaction goes on in the next segment.
        continues: the first transaction began in an earlier segment.
    """

    nbytes: int
    data: Any
    rows: Any
    map_plans: Any
    plans: DecodePlans
    positions: BinlogTxPositions
    changes: tuple[SchemaChange, ...] = ()
    row_base: int = 0
    skip: int = 0
    open_tx: bool = False
    continues: bool = False

    @property
    def end(self) -> Position:
        """Where reading may resume after the segment's last complete transaction."""
        return self.positions.log_position(len(self.positions.transactions)).as_json()
