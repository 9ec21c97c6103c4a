"""Positions, DSNs and errors: what needs no server."""

import json
import pickle

import numpy as np
import pytest
from pydantic import SecretStr, ValidationError

from airflow_provider_deltaforge.errors import (
    AccessError,
    FatalError,
    PositionLostError,
    RetryableError,
    SpecError,
)
from airflow_provider_deltaforge.sources.postgres.connection import (
    PostgresDsn,
    SlotInUseError,
    error_response,
    parse_dsn,
    server_error,
)
from airflow_provider_deltaforge.sources.postgres.positions import (
    WalPosition,
    WalTxPositions,
    common_cut,
    lsn_text,
    parse_lsn,
    visible_in,
)
from airflow_provider_deltaforge.sources.postgres.source import PostgresSource
from airflow_provider_deltaforge.sources.postgres.wal.messages import LogicalMessage

BASE = WalPosition(100, "7", 1)
SOURCE = {"id": "s", "dsn": "host=h", "publication": "p", "slot": "s"}


def positions(*ends: int, reached: int = 0) -> WalTxPositions:
    count = np.arange(len(ends), dtype=np.int64)
    return WalTxPositions(BASE, np.array(ends, np.int64), count, count, count, reached)


@pytest.mark.parametrize("text", ["0/0", "16/B374D848", "FFFFFFFF/FFFFFFFF"])
def test_an_lsn_is_written_as_the_server_does(text: str) -> None:
    assert lsn_text(parse_lsn(text)) == text


def test_a_position_never_lies_inside_a_transaction() -> None:
    found = positions(110, 130, 0)
    assert [found.after(tx)["lsn"] for tx in range(3)] == ["0/6E", "0/82", "0/82"]
    assert found.end == found.after(1)
    assert positions(0).end == BASE.as_json()


def test_the_servers_reading_moves_only_the_end() -> None:
    found = positions(110, reached=200)
    assert (found.after(0)["lsn"], found.end["lsn"]) == ("0/6E", "0/C8")
    assert positions(reached=50).end == BASE.as_json()
    assert pickle.loads(pickle.dumps(found)).end == found.end


def test_positions_are_ordered_within_a_cluster_only() -> None:
    source = PostgresSource(**SOURCE)
    low, high = ({"lsn": lsn, "system_id": "7", "timeline": 1} for lsn in ("F/FFFFFFFF", "10/0"))
    assert [source.compare(low, high), source.compare(high, low)] == [-1, 1]
    assert source.compare(low, {**low, "timeline": 2}) == 0
    with pytest.raises(PositionLostError, match="take a new snapshot"):
        source.compare(low, {**high, "system_id": "8"})


@pytest.mark.parametrize(
    "text",
    [
        "postgres://u:p%40ss@h:5433/d?sslmode=require",
        "postgresql://u:p%40ss@h:5433/d?sslmode=require",
        "host=h port=5433 user=u password='p@ss' dbname=d sslmode=require",
    ],
)
def test_both_forms_of_a_dsn_mean_the_same(text: str) -> None:
    given = parse_dsn(text)
    wanted = {"host": "h", "port": "5433", "user": "u", "password": "p@ss", "dbname": "d"}
    assert {name: str(given[name]) for name in wanted} == wanted
    assert given["sslmode"] == "require"
    dsn = PostgresDsn(SecretStr(text), "me", 7)
    assert dsn.address == "h:5433"
    assert "p@ss" not in repr(dsn)
    parameters = dsn.parameters(replication=True)
    assert (parameters["replication"], parameters["connect_timeout"]) == ("database", 7)
    assert "timezone=UTC" in parameters["options"]


def test_no_environment_encrypts_with_gss_what_is_read_from_the_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PGGSSENCMODE", "require")
    for text in ("host=h", "host=h gssencmode=disable"):
        assert PostgresDsn(SecretStr(text)).parameters()["gssencmode"] == "disable"


def test_what_a_dsn_says_itself_wins() -> None:
    text = "host=h connect_timeout=3 application_name=mine options='-c search_path=x'"
    parameters = PostgresDsn(SecretStr(text)).parameters()
    assert (parameters["connect_timeout"], parameters["application_name"]) == ("3", "mine")
    assert parameters["options"].startswith("-c search_path=x -c datestyle=ISO")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "planted",
        "mysql://u:planted@h/d",
        "host=h replication=planted",
        "host='planted",
        "postgresql://u:p@planted@h/d",
        "postgresql://u:p/planted@h/d",
        "postgresql://u:1/planted@h/d",
        "postgresql://u@planted:x@h/d",
        "host=h password=planted gssencmode=prefer",
        "postgresql://u:planted@h/d?gssencmode=require",
    ],
)
def test_a_wrong_dsn_is_refused_and_never_quoted(text: str) -> None:
    with pytest.raises(SpecError, match=r"source\.dsn") as caught:
        parse_dsn(text)
    assert "planted" not in str(caught.value)


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        ("28P01", "password authentication failed", AccessError),
        ("42501", "permission denied for table t", AccessError),
        ("", 'database "x" does not exist', AccessError),
        ("", "SSL error: certificate verify failed", AccessError),
        ("", "SSL error: unexpected eof while reading", RetryableError),
        ("", "Connection refused", RetryableError),
        ("57P01", "terminating connection due to administrator command", RetryableError),
        ("53300", "too many connections", RetryableError),
        ("55006", 'replication slot "s" is active for PID 7', SlotInUseError),
        ("58P01", "requested WAL segment 0001 has already been removed", PositionLostError),
        ("55000", 'can no longer get changes from replication slot "s"', PositionLostError),
        ("55000", "logical decoding requires wal_level >= logical", FatalError),
        ("42704", 'publication "p" does not exist', FatalError),
    ],
)
def test_errors_say_what_the_engine_is_to_do(code: str, text: str, kind: type) -> None:
    error = server_error(code, text, "reading")
    assert type(error) is kind
    assert text in str(error)


def test_an_error_in_the_log_is_understood() -> None:
    body = b"SERROR\0C57P01\0Mended\0Hstart it\0\0"
    error = error_response(body)
    assert isinstance(error, RetryableError)
    assert str(error) == "reading the log: ended (start it)"


@pytest.mark.parametrize(
    "content", [b'{"a": [1, 2.50]}', b" null ", b'"x"', b"12345678901234567890"]
)
def test_json_in_a_message_is_left_as_it_is(content: bytes) -> None:
    assert LogicalMessage(True, 1, "p", content).image == content.strip()


@pytest.mark.parametrize("content", [b"", b"text", b"\xff\x00", b"{"])
def test_anything_else_in_a_message_is_shown_in_base64(content: bytes) -> None:
    image = json.loads(LogicalMessage(False, 1, "p", content).image)
    assert list(image) == ["_base64"]


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"slot": "Bad-Name"}, "slot"),
        ({"slot": {"name": "s", "creat": False}}, "creat"),
        ({"publication": ""}, "publication"),
        ({"start_position": {"lsn": "16B374D848"}}, "start_position"),
        ({"start_position": "newest"}, "start_position"),
        ({"tables": [".orders"]}, "tables"),
    ],
)
def test_settings_that_mean_nothing_are_refused_by_key(settings: dict, key: str) -> None:
    with pytest.raises(ValidationError, match=key):
        PostgresSource(**{**SOURCE, **settings})


def test_readers_beside_one_source_have_slots_of_their_own() -> None:
    source = PostgresSource(**{**SOURCE, "slot": "s" * 60})
    readers = [source.beside(name) for name in ("spark", "Spark", "spark/1", "spark-1")]
    names = [reader.slot_settings.name for reader in readers]
    assert len({*names, "s" * 60}) == 5
    assert all(len(name) <= 63 and name.replace("_", "").isalnum() for name in names)
    assert source.beside("spark").slot_settings.name == names[0]
    assert source.beside("spark", once=True).slot_settings.name == names[0]
    assert pickle.loads(pickle.dumps(readers[0]))._original == "s" * 60


def wal(*xids, timeline=3):
    """Return positions of transactions with these numbers, as the log has them."""
    ends = np.arange(len(xids), dtype=np.int64)
    logged = np.array(xids, np.int64) & 0xFFFFFFFF
    return WalTxPositions(WalPosition(0, "7", timeline), ends, ends, logged, ends)


def view(snapshot, **more):
    return {"lsn": "0/0", "system_id": "7", "timeline": 3, "snapshot": snapshot, **more}


def test_a_view_contains_whoever_had_ended_when_it_opened():
    shown = visible_in(view("10:20:12,15"), wal(9, 12, 14, 15, 19, 20, 25, 0))

    assert shown.tolist() == [True, False, True, False, True, False, False, False]


@pytest.mark.parametrize("epoch", [0, 1, 5])
def test_numbers_that_wrapped_around_are_compared_by_what_they_are(epoch):
    edge = (epoch + 1) << 32
    around = wal(edge - 3, edge - 2, edge + 3, edge + 4, edge + 9)

    shown = visible_in(view(f"{edge - 2}:{edge + 5}:{edge - 2},{edge + 4}"), around)

    assert shown.tolist() == [True, False, True, False, False]


@pytest.mark.parametrize(
    "cut",
    [
        view("10:20:", timeline=4),
        view("10:20:", system_id="8"),
        {"lsn": "0/0", "system_id": "7", "timeline": 3},
    ],
    ids=["promoted", "another cluster", "a standby's view"],
)
def test_of_some_views_nothing_is_known(cut):
    assert visible_in(cut, wal(5)).tolist() == [False]


def test_views_have_in_common_whoever_had_ended_before_all_of_them():
    common = common_cut([view("10:20:12"), view("15:18:"), view("12:30:13")])

    assert visible_in(common, wal(9, 10, 11)).tolist() == [True, False, False]
    assert common_cut([view("10:20:"), view("10:20:", timeline=4)]) is None
    assert common_cut([view("10:20:"), view("")]) is None
