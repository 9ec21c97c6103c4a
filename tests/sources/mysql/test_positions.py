"""Positions are ordered by what they contain, not by how their files are spelt."""

import pytest

from airflow_provider_deltaforge.errors import PositionLostError
from airflow_provider_deltaforge.sources.mysql.positions import compare

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
