"""Looking ahead in the log, without a server."""

import pytest

from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.sources.mysql.ddl.pending_ddl import DdlLookahead, PendingDdl
from airflow_provider_deltaforge.sources.mysql.ddl.statements import understand
from airflow_provider_deltaforge.sources.mysql.positions import LogPosition

START = LogPosition("binlog.000001", 4, None, "")
END = LogPosition("binlog.000001", 900, None, "")


class _Walker:
    """A reader on a silent server that is asked to stop while it reads."""

    place = ("binlog.000001", 4)
    position = START.as_json()
    reads = 0
    closed = False

    def read(self, timeout_s):
        self.reads += 1

    def close(self):
        self.closed = True


def test_a_stop_ends_the_look_at_once():
    walker = _Walker()
    ahead = DdlLookahead(lambda start, recorder: walker, 90, lambda: walker.reads > 0)
    with pytest.raises(RetryableError, match="asked to stop"):
        ahead.between(START, END)
    assert walker.reads == 1
    assert walker.closed


@pytest.mark.parametrize(
    ("statement", "touched"),
    [
        ("DROP DATABASE shop", True),
        ("DROP DATABASE other", False),
        ("CREATE DATABASE IF NOT EXISTS shop", False),
        ("ALTER DATABASE shop CHARACTER SET latin1", False),
        ("ALTER TABLE t ADD c int", True),
        ("ALTER TABLE other.t ADD c int", False),
        ("RENAME TABLE u TO t", True),
        ("CREATE INDEX i ON t (a)", False),
        ("TRUNCATE TABLE t", False),
    ],
)
def test_what_lies_ahead_touches_only_the_tables_it_changes(statement, touched):
    assert PendingDdl("shop", understand(statement), statement).touches(("shop", "t")) is touched
