"""Random values through a real server: what went in is what the stream prints."""

import base64
import datetime as dt
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_deltaforge.columns.float_text_kernel import put_float32, put_float64
from airflow_provider_deltaforge.errors import AccessError
from tests.servers import sql
from tests.servers.process import Server
from tests.sources.mysql.stream_reading import rows, source_of

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
_ROW = st.tuples(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**64 - 1),
    st.decimals(-(10**20), 10**20, places=7, allow_nan=False),
    st.floats(allow_nan=False, allow_infinity=False),
    _TEXT,
    st.binary(max_size=60),
    st.datetimes(dt.datetime(1000, 1, 1), dt.datetime(9999, 12, 31)),
    st.timedeltas(dt.timedelta(hours=-838), dt.timedelta(hours=838)),
    st.dates(dt.date(1000, 1, 1)),
    st.integers(0, 2**20 - 1),
    st.none() | _TEXT,
)


@pytest.mark.parametrize("name", ["mysql", "mariadb"])
def test_random_rows_arrive_as_they_were_written(name: str, request: pytest.FixtureRequest) -> None:
    server: Server = request.getfixturevalue(f"{name}_server")
    database = "s_random_rows"
    sql.execute(server, f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database}")
    connection = sql.connect(server, database)
    cursor = connection.cursor()
    cursor.execute("SET sql_mode = ''")
    cursor.execute(
        "CREATE TABLE t (i bigint, u bigint unsigned, d decimal(40,7), f double, "
        "v varchar(200) character set utf8mb4, b varbinary(100), m datetime(6), c time(6), "
        "y date, s bit(20), n text character set utf8mb4)"
    )
    source = source_of(server, database)

    @settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(_ROW, min_size=10, max_size=40))
    def check(values: list[tuple[Any, ...]]) -> None:
        start = source.head()
        cursor.executemany(
            "INSERT INTO t VALUES (%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s)",
            [(*row[:3], repr(row[3]), *row[4:]) for row in values],
        )
        found = [orjson.loads(row["after"]) for row in rows(source, start)]
        assert len(found) == len(values)
        for written, read in zip(values, found, strict=True):
            _compare(written, read)

    check()
    connection.close()


def _compare(written: tuple[Any, ...], read: dict[str, Any]) -> None:
    i, u, d, f, v, b, m, c, y, s, n = written
    assert (read["i"], read["u"]) == (i, u)
    assert Decimal(read["d"]) == d
    assert len(read["d"].partition(".")[2]) == 7
    assert struct.pack("<d", read["f"] + 0.0) == struct.pack("<d", f + 0.0)
    assert (read["v"], read["n"]) == (v, n)
    assert read["b"] == {"_base64": base64.b64encode(b).decode()}
    assert dt.datetime.fromisoformat(read["m"]) == m
    sign, clock = (-1, read["c"][1:]) if read["c"].startswith("-") else (1, read["c"])
    hours, minutes, seconds = clock.split(":")
    micros = (int(hours) * 3600 + int(minutes) * 60) * 10**6 + round(float(seconds) * 10**6)
    assert sign * micros == c // dt.timedelta(microseconds=1)
    assert (read["y"], read["s"]) == (y.isoformat(), s)


@settings(deadline=None)  # The first call compiles the kernels.
@given(st.integers(0, 2**64 - 1))
def test_doubles_print_their_shortest_form(bits: int) -> None:
    value = struct.unpack("<d", struct.pack("<Q", bits))[0]
    out = np.zeros(64, np.uint8)
    text = out[: put_float64(out, 0, np.uint64(bits))].tobytes().decode()
    if np.isfinite(value):
        mantissa, mark, exponent = repr(value).partition("e")
        assert text == (f"{mantissa}e{int(exponent)}" if mark else mantissa)
    else:
        assert text in ('"NaN"', '"Infinity"', '"-Infinity"')


@settings(deadline=None)  # The first call compiles the kernels.
@given(st.integers(0, 2**32 - 1))
def test_floats_print_their_shortest_form(bits: int) -> None:
    value = np.uint32(bits).view(np.float32)
    out = np.zeros(64, np.uint8)
    text = out[: put_float32(out, 0, np.uint64(bits))].tobytes().decode()
    if np.isfinite(value):
        shortest = np.format_float_scientific(value, unique=True, trim="-")
        assert Decimal(text) == Decimal(shortest)


@pytest.mark.parametrize("charset", ["sjis", "cp932", "gbk", "big5", "euckr", "ujis", "gb18030"])
def test_multi_byte_text_arrives_in_unicode(mysql_server: Server, charset: str) -> None:
    database = "s_charset_" + charset
    sql.execute(
        mysql_server,
        f"DROP DATABASE IF EXISTS {database}",
        f"CREATE DATABASE {database} CHARACTER SET {charset}",
    )
    source = source_of(mysql_server, database)
    connection = sql.connect(mysql_server, database)
    with connection.cursor() as cursor:
        cursor.execute("SET sql_mode = ''")
        cursor.execute("CREATE TABLE t (id int primary key, v varchar(900))")
        start = source.head()
        text = 'abc\\"|' + "".join(map(chr, range(0x4E00, 0x4E80))) + "아カﾃΩж€😀"
        cursor.execute("INSERT INTO t VALUES (1, %s)", (text,))
        cursor.execute("SELECT v FROM t")
        expected = cursor.fetchone()[0]
    connection.close()
    assert orjson.loads(rows(source, start)[0]["after"])["v"] == expected


def test_tls_is_used_when_required_and_missed_when_absent(
    mysql_server: Server, mariadb_server: Server
) -> None:
    ca = mysql_server.attributes["ca"]
    database = "s_tls"
    sql.execute(
        mysql_server,
        f"DROP DATABASE IF EXISTS {database}",
        f"CREATE DATABASE {database}",
        "CREATE USER IF NOT EXISTS tls@'%' IDENTIFIED BY 'only-tls' REQUIRE SSL",
        "GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO tls@'%'",
    )
    dsn = f"mysql://tls:only-tls@{mysql_server.host}:{mysql_server.port}/{database}"
    source = source_of(mysql_server, database, dsn=dsn, ssl_mode="verify_ca", ssl_ca=ca)
    start = source.head()
    create = ("CREATE TABLE t (id int)", "INSERT INTO t VALUES (7)")
    sql.execute(mysql_server, *create, database=database)
    assert rows(source, start)[-1]["after"] == b'{"id":7}'
    with pytest.raises(AccessError):
        source.model_copy(update={"ssl_mode": "disabled", "ssl_ca": None}).head()
    with pytest.raises(AccessError, match="TLS"):
        source_of(mariadb_server, "x", ssl_mode="required").head()
