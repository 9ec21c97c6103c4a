"""Schema changes keep their event ids, however the log falls into segments."""

import numpy as np

from airflow_provider_deltaforge.events.ids import id_key
from airflow_provider_deltaforge.sources.mysql.binlog import framing_kernel
from airflow_provider_deltaforge.sources.mysql.binlog.decode_plans import DecodePlans
from airflow_provider_deltaforge.sources.mysql.binlog.decoder import decode_segment
from airflow_provider_deltaforge.sources.mysql.binlog.log_segment import BinlogSegment, SchemaChange
from airflow_provider_deltaforge.sources.mysql.gtid import GtidSet
from airflow_provider_deltaforge.sources.mysql.positions import BinlogTxPositions, LogPosition

UUID = "11111111-2222-3333-4444-555555555555"


def _ids(first, *changes_of):
    """Decode a segment of transactions numbered from ``first``, with so many changes each."""
    transactions = np.array(
        [
            [0, first + n, 1000, 100 * (first + n), 100 * (first + n) + 90, 1]
            for n in range(len(changes_of))
        ],
        np.int64,
    )
    changes = tuple(
        SchemaChange(tx, 0, "ddl", "shop", "_ddl", b'{"sql":"ALTER TABLE t"}')
        for tx, count in enumerate(changes_of)
        for _ in range(count)
    )
    before = GtidSet.parse(f"{UUID}:1-{first - 1}")
    base = LogPosition("binlog.000001", 100 * first, before, UUID)
    segment = BinlogSegment(
        nbytes=100,
        data=np.zeros(0, np.uint8),
        rows=np.zeros((0, framing_kernel.ROW_COLUMNS), np.int64),
        map_plans=np.zeros(0, np.int64),
        plans=DecodePlans(),
        positions=BinlogTxPositions(base, "binlog.000001", transactions, (UUID,)),
        changes=changes,
    )
    rows = decode_segment(segment, id_key("shop"), mariadb=False).rows
    return rows.column("event_id").to_pylist()


def test_a_change_has_the_same_id_whatever_else_is_in_its_segment():
    together = _ids(5, 1, 1)
    assert together == [*_ids(5, 1), *_ids(6, 1)]


def test_the_changes_of_one_transaction_have_ids_of_their_own():
    found = _ids(5, 2, 1)
    assert len(set(found)) == 3
    assert found[2:] == _ids(6, 1)
