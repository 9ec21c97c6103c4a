"""Places in the log as people write them, for ``--at`` and ``--to`` alike."""

import pytest

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.sources.mysql.gtid import GtidPos, GtidSet
from airflow_provider_deltaforge.sources.mysql.named_places import (
    FileOffset,
    Transaction,
    named_place,
)

UUID = "3E11FA47-71CA-11E1-9E33-C80AA9429562"
MYSQL, MARIADB = GtidSet.parse(f"{UUID}:1-9"), GtidPos.parse("0-1-9")


@pytest.mark.parametrize(
    ("text", "gtids", "place"),
    [
        ("binlog.000002:1234", None, FileOffset("binlog.000002", 1234)),
        (f"{UUID}:7", MYSQL, Transaction(UUID.lower(), 7)),
        ("0-2-7", MARIADB, Transaction("0-2", 7)),
        ('{"file": "b.1", "pos": 4, "more": 1}', None, {"file": "b.1", "pos": 4, "more": 1}),
    ],
)
def test_forms(text, gtids, place):
    assert named_place(text, gtids, "--at") == place


@pytest.mark.parametrize(
    ("text", "gtids"),
    [("yesterday", MYSQL), ("0-2-7", MYSQL), (f"{UUID}:7", MARIADB), ("0-2-7", None), ("{", MYSQL)],
)
def test_no_place(text, gtids):
    with pytest.raises(SpecError, match=r"^to: .* is no (place|position) of"):
        named_place(text, gtids, "to")
