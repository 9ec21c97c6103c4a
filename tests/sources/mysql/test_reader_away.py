"""While its server is away the reader says so at every call, and not that all is quiet."""

import pytest

from airflow_provider_deltaforge.errors import FatalError, RetryableError
from airflow_provider_deltaforge.sources.mysql.binlog import reader as reader_module
from airflow_provider_deltaforge.sources.mysql.binlog.reader import MySqlReader
from airflow_provider_deltaforge.sources.mysql.connection import MySqlServer, translated
from airflow_provider_deltaforge.sources.mysql.positions import LogPosition
from airflow_provider_deltaforge.sources.mysql.tuning import MySqlTuning
from airflow_provider_deltaforge.spec.patterns import TableMatcher

HASTY = MySqlTuning(retry_max_s=0.01)
INFO = MySqlServer(False, "uuid", True, True)


class _Server:
    """Accepts a connection, unless it is away; none of them holds anything."""

    away = False

    def connect(self):
        if self.away:
            raise RetryableError("connecting to db:3306: refused")
        return self

    def close(self):
        """Nothing is held."""


@pytest.fixture
def server():
    return _Server()


@pytest.fixture
def reader(server, monkeypatch):
    monkeypatch.setattr(reader_module, "server_info", lambda _: INFO)
    matcher = TableMatcher(("shop.*",), None, frozenset())
    position = LogPosition("", 4, None, "uuid")
    made = MySqlReader(
        "s", server.connect, matcher, position, 7, 1.0, 5.0, lambda: False, tuning=HASTY
    )
    yield made
    made.close()


def test_every_read_fails_while_the_server_is_away(server, reader):
    server.away = True
    for _ in range(15):
        with pytest.raises(RetryableError, match="refused"):
            reader.read(0.1)


def _read_often(reader):
    for _ in range(50):
        reader.read(0.1)


class _Kicked:
    """A dump that the server ends because another one of our id began."""

    def __init__(self, _):
        self._error = (1236, "A replica with the same server_uuid/server_id has connected")

    def receive(self, view, timeout_s):
        raise translated(type("_Error", (Exception,), {})(*self._error), "reading the log")

    def close(self):
        """Nothing is held."""


def test_a_reader_whose_id_another_one_took_comes_back_a_few_times_before_it_gives_up(
    reader, monkeypatch
):
    monkeypatch.setattr(reader_module, "DumpSocket", _Kicked)
    monkeypatch.setattr(reader_module, "start_dump", lambda *_: None)
    with pytest.raises(FatalError, match="server_id"):
        _read_often(reader)
    assert len(reader._breaks) == 6
