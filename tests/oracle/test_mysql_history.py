"""What the oracle takes for the place of a position in MySQL's log."""

import pytest

from tests.oracle.mysql_history import last_number

OURS, OTHER = "5fea3df4-ec13-11f1-a48d-02fc00000001", "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"


@pytest.mark.parametrize(
    ("gtid_set", "number"),
    [
        (f"{OURS}:1-61", 61),
        (f"{OURS}:1-58:60-61", 61),
        (f"{OURS}:1-61:blue:1-99", 61),
        (f"{OURS}:1-61,{OTHER}:1-99", 61),
        (f"{OTHER}:1-99,\n{OURS}:1-61", 61),
        (f"{OTHER}:1-99", 0),
        ("", 0),
        (None, 0),
    ],
)
def test_transactions_of_other_servers_and_tags_do_not_count(gtid_set, number):
    assert last_number({"gtid_set": gtid_set, "server_uuid": OURS}) == number
