"""Positions are ordered by what they contain, not by how their files are spelt."""

import numpy as np
import pytest

from airflow_provider_deltaforge.errors import PositionLostError
from airflow_provider_deltaforge.sources.mysql.gtid import GtidSet
from airflow_provider_deltaforge.sources.mysql.positions import (
    TX_COLUMNS,
    TX_NUMBER,
    TX_ORIGIN,
    TX_START,
    TX_STOP,
    BinlogTxPositions,
    LogPosition,
    common_cut,
    compare,
    is_behind,
    visible_in,
)

A, B = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "4e11fa47-71ca-11e1-9e33-c80aa9429562"


def at(file, pos, **more):
    return {"file": file, "pos": pos, "server_uuid": A, **more}


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (at("binlog.000002", 900), at("binlog.000010", 4)),
        (at("binlog.999999", 900), at("binlog.1000000", 4)),
        (at("binlog.000002", 900), at("binlog.000002", 1000)),
        # On another server the same transactions may lie in an earlier file.
        (
            at("binlog.000009", 4, gtid_set=f"{A}:1-5"),
            at("binlog.000001", 4, gtid_set=f"{A}:1-6", server_uuid=B),
        ),
        (at("binlog.000009", 4, gtid_set=f"{A}:1-5"), at("", 4, gtid_set=f"{A}:1-5,{B}:1")),
        (at("binlog.000009", 4, gtid_pos="0-1-9"), at("binlog.000001", 4, gtid_pos="0-1-10")),
    ],
)
def test_the_earlier_position_is_found(left, right):
    assert compare(left, right) == -1
    assert compare(right, left) == 1
    assert compare(left, left) == compare(right, right) == 0


def test_histories_that_diverged_have_no_order():
    with pytest.raises(PositionLostError, match="take a new snapshot"):
        compare(at("a.1", 4, gtid_set=f"{A}:1-5"), at("a.1", 4, gtid_set=f"{A}:1-4,{B}:1"))


def test_files_of_two_servers_have_no_order():
    with pytest.raises(PositionLostError, match="without GTIDs"):
        compare(at("a.1", 4), at("a.1", 4, server_uuid=B))


def transactions(*rows, before=None, file="binlog.000007"):
    """Return positions of a batch behind a GTID set; a row: origin, number, start, end."""
    table = np.zeros((len(rows), TX_COLUMNS), np.int64)
    table[:, [TX_ORIGIN, TX_NUMBER, TX_START, TX_STOP]] = rows
    gtids = None if before is None else GtidSet.parse(before)
    base = LogPosition(file, 4, gtids, A)
    return BinlogTxPositions(base, file, table, (A, f"{A}:tag", B))


def shown(cut, positions):
    return visible_in(LogPosition.from_json(cut), positions).tolist()


def test_a_view_contains_what_its_gtids_name():
    batch = transactions(
        (0, 5, 4, 100), (1, 5, 100, 200), (2, 1, 200, 300), (0, 6, 300, -1), before=f"{A}:1-4"
    )
    cut = at("binlog.000007", 9999, gtid_set=f"{A}:1-5:tag:5-9,{B}:1")

    assert shown(cut, batch) == [True, True, True, False]
    # Also on another server, whose files are its own.
    assert shown({**cut, "server_uuid": B}, batch) == [True, True, True, False]


def test_behind_what_its_gtids_do_not_name_a_view_is_not_trusted():
    """A later change of a row would be left out, and an earlier one delivered as the last."""
    late = (0, 7, 200, 300)
    cut = at("binlog.000007", 9999, gtid_set=f"{A}:1-5:7")

    assert shown(cut, transactions((0, 5, 4, 100), (0, 6, 100, 200), late, before=f"{A}:1-4")) == [
        True,
        False,
        False,
    ]
    assert shown(cut, transactions(late, before=f"{A}:1-6")) == [False]
    assert shown(cut, transactions((-1, 0, 4, 100), late, before=f"{A}:1-4")) == [False, False]
    assert shown(cut, transactions((0, 5, 4, 100))) == [False]


def test_without_gtids_a_view_contains_what_begins_before_its_place():
    open_one = (-1, 0, 200, -1)
    batch = transactions((-1, 0, 4, 100), (-1, 0, 100, 200), open_one)

    assert shown(at("binlog.000007", 100), batch) == [True, False, False]
    assert shown(at("binlog.000007", 900), batch) == [True, True, True]
    assert shown(at("binlog.000006", 900), batch) == [False, False, False]
    assert shown(at("binlog.000010", 4), batch) == [True, True, True]


@pytest.mark.parametrize(
    "cut",
    [at("binlog.000010", 4, server_uuid=B), at("", 0), at("binlog.000010", 4, server_uuid="")],
)
def test_of_another_server_nothing_is_known(cut):
    assert shown(cut, transactions((-1, 0, 4, 100))) == [False]


def test_views_have_in_common_what_each_of_them_contained():
    sets = [at("b.000002", 9, gtid_set=f"{A}:1-9"), at("b.000001", 5, gtid_set=f"{A}:1-4:6-12")]
    places = [at("b.000010", 9), at("b.000009", 99)]

    def common(cuts):
        return common_cut([LogPosition.from_json(cut) for cut in cuts])

    assert common(sets)["gtid_set"] == f"{A}:1-4:6-9"
    assert common(places) == places[1]
    assert common([places[0], {**places[1], "server_uuid": B}]) is None
    assert common([sets[0], places[1]]) is None


UUID = "aaaaaaaa-0000-0000-0000-000000000000"


def test_a_log_is_behind_a_view_when_it_has_passed_all_that_the_view_contained():
    ours = {"server_uuid": UUID, "file": "binlog.000007"}

    def at(pos, numbers):
        return {**ours, "pos": pos, "gtid_set": f"{UUID}:{numbers}"}

    exact = at(900, "1-5")
    assert [is_behind(at(800, numbers), exact) for numbers in ("1-4", "1-5", "1-6")] == [
        False,
        True,
        True,
    ]
    # The view may contain more than its set of GTIDs says: up to the log's end.
    inexact = {**exact, "inexact": True, "upto": ["binlog.000007", 1200], "executed": f"{UUID}:1-7"}
    assert [is_behind(at(pos, "1-9"), inexact) for pos in (1100, 1200)] == [False, True]
    # Offsets in the log of a replica say nothing of the server's.
    replica = {**inexact, "server_uuid": "bbbbbbbb-0000-0000-0000-000000000000"}
    assert [is_behind(at(5000, numbers), replica) for numbers in ("1-6", "1-7")] == [False, True]
