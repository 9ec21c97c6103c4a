"""The segmenter over frames made here: borders a real server shows too seldom."""

import struct
from typing import Any

import pytest

from airflow_provider_deltaforge.errors import FatalError, PositionLostError
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.sources.postgres.positions import WalPosition
from airflow_provider_deltaforge.sources.postgres.tuning import PostgresTuning
from airflow_provider_deltaforge.sources.postgres.wal.decode_plans import WalTablePlan
from airflow_provider_deltaforge.sources.postgres.wal.messages import Relation
from airflow_provider_deltaforge.sources.postgres.wal.segmenter import WalSegmenter

START = WalPosition(1000, "7", 1)
RELATION = b"R" + struct.pack("!I", 5) + b"public\0t\0d" + struct.pack("!H", 0)
OTHER = b"R" + struct.pack("!I", 6) + b"public\0u\0d" + struct.pack("!H", 0)


def frame(body: bytes, lsn: int = 0) -> bytes:
    inner = b"w" + struct.pack("!qqq", lsn, lsn, 0) + body
    return b"d" + struct.pack("!i", len(inner) + 4) + inner


RELATION_FRAME, OTHER_FRAME = frame(RELATION), frame(OTHER)


def keepalive(lsn: int, *, ask: bool = False) -> bytes:
    inner = b"k" + struct.pack("!qq?", lsn, 0, ask)
    return b"d" + struct.pack("!i", len(inner) + 4) + inner


def begin(commit: int) -> bytes:
    return frame(b"B" + struct.pack("!qqi", commit, 0, 9))


def end(commit: int) -> bytes:
    return frame(b"C" + struct.pack("!bqqq", 0, commit, commit + 8, 0))


def row(size: int = 50, oid: int = 5) -> bytes:
    return frame(b"I" + struct.pack("!I", oid) + b"N\0\0" + bytes(size))


def plan(relation: Relation) -> WalTablePlan | None:
    if relation.table != "t":
        return None
    return WalTablePlan(TableSchema("d", "public", relation.table, ()), captured=True)


@pytest.fixture
def chunker() -> WalSegmenter:
    small = PostgresTuning(segment_bytes=4096, receive_bytes=512)
    return WalSegmenter("d", START, plan, lambda _: None, lambda _: None, small)


def feed(chunker: WalSegmenter, *frames: bytes) -> list[Any]:
    """Give the chunker bytes as they fit, and return what it hands out."""
    data = b"".join(frames)
    while data:
        view = chunker.room()
        size = min(len(view), len(data), 700)
        view[:size] = data[:size]
        data = data[size:]
        chunker.take(size)
    chunker.cut()
    found = list(chunker.ready)
    chunker.ready.clear()
    return found


def test_what_was_handed_out_of_a_cut_transaction_is_left_out_when_it_comes_again(
    chunker: WalSegmenter,
) -> None:
    whole = [begin(2000), RELATION_FRAME, OTHER_FRAME, *[row(), row(oid=6)] * 60]
    first = feed(chunker, *whole)
    assert all(chunk.open_tx for chunk in first)
    assert [chunk.continues for chunk in first] == [False, *[True] * (len(first) - 1)]
    chunker.restart()
    second = feed(chunker, *whole, row(), end(2000), keepalive(3000))
    indexes = [int(i) for chunk in (*first, *second) for i in chunk.rows[:, 5]]
    assert indexes == [*range(0, 120, 2), 120]
    assert second[-1].end["lsn"] == "0/BB8"
    assert {chunk.end["lsn"] for chunk in (*first, *second[:-1])} == {"0/3E8"}


def test_another_transaction_where_one_was_cut_is_refused(chunker: WalSegmenter) -> None:
    assert feed(chunker, begin(2000), RELATION_FRAME, *[row()] * 80)
    chunker.restart()
    with pytest.raises(FatalError, match="history changed"):
        feed(chunker, begin(2100), RELATION_FRAME, row(), end(2100))


def test_a_keepalive_moves_only_between_transactions(chunker: WalSegmenter) -> None:
    assert feed(chunker, keepalive(1500)) == []
    assert chunker.moved
    chunker.cut_idle()
    (idle,) = feed(chunker, begin(2000), RELATION_FRAME, row(), keepalive(9999, ask=True))
    assert (idle.end["lsn"], len(idle.positions)) == ("0/5DC", 0)
    assert chunker.asked
    assert not chunker.moved
    (chunk,) = feed(chunker, end(2000))
    assert chunk.end["lsn"] == "0/7D8"


def test_a_row_larger_than_a_chunk_is_one_chunk(chunker: WalSegmenter) -> None:
    frames = [begin(2000), RELATION_FRAME, row(), row(50_000), row(), end(2000)]
    found = feed(chunker, *frames)
    sizes = [int(stop - start) for chunk in found for start, stop in chunk.rows[:, :2]]
    assert sizes == [53, 50_003, 53]


def test_rows_nobody_wants_never_fill_the_memory(chunker: WalSegmenter) -> None:
    found = feed(chunker, begin(2000), RELATION_FRAME, OTHER_FRAME, row(), *[row(oid=6)] * 2000)
    assert found == []
    assert len(chunker.room()) <= 4096
    (chunk,) = feed(chunker, end(2000))
    assert (len(chunk.rows), chunk.continues) == (1, False)


@pytest.mark.parametrize(
    "wrong",
    [row(), b"d\0\0\0\x05z", frame(b"C" + bytes(25)), frame(b"Z")],
    ids=["row outside", "unknown frame", "commit outside", "unknown message"],
)
def test_what_cannot_be_is_never_passed(chunker: WalSegmenter, wrong: bytes) -> None:
    with pytest.raises(FatalError, match="Nothing was skipped"):
        feed(chunker, RELATION_FRAME, wrong)


def test_a_row_of_an_untold_table_is_never_passed(chunker: WalSegmenter) -> None:
    with pytest.raises(FatalError, match="Nothing was skipped"):
        feed(chunker, begin(2000), row())


def test_the_servers_error_comes_through(chunker: WalSegmenter) -> None:
    body = b"SERROR\0C58P01\0Mrequested WAL segment has already been removed\0\0"
    with pytest.raises(PositionLostError, match="already been removed"):
        feed(chunker, b"E" + struct.pack("!i", len(body) + 4) + body)
    chunker.restart()
    with pytest.raises(ConnectionResetError):
        feed(chunker, b"c\0\0\0\x04")


def test_more_tables_than_the_first_hash_table_holds_are_found(chunker: WalSegmenter) -> None:
    told = [
        frame(b"R" + struct.pack("!I", 100 + oid) + b"public\0t\0d" + struct.pack("!H", 0))
        for oid in range(1000)
    ]
    (chunk,) = feed(chunker, begin(2000), *told, *[row(oid=100 + o) for o in range(0, 1000, 50)],
                    end(2000))  # fmt: skip
    assert len(chunk.rows) == 20
