"""The same log read by python-mysql-replication: another author's decoder finds the same values."""

import base64
import datetime as dt
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

from tests.servers import sql
from tests.servers.process import Server
from tests.sources.mysql.stream_reading import rows, source_of

# Making a failing example smaller would take minutes of the server's time.
_PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
_QUICK = {"deadline": None, "phases": _PHASES, "suppress_health_check": list(HealthCheck)}
_CHARACTERS = st.characters(exclude_categories=["Cs"])
_TEXT = st.text(_CHARACTERS, max_size=300) | st.text(st.sampled_from('"\\\n\t ax\x01\x7f'))
_LATIN = st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters=[
    chr(c) for c in range(0x7F, 0xA0)]), max_size=40)  # fmt: skip
_MOMENT = st.datetimes(dt.datetime(1000, 1, 1), dt.datetime(9999, 12, 31))
_SINCE_EPOCH = st.datetimes(dt.datetime(1970, 1, 1, 0, 0, 1), dt.datetime(2038, 1, 19, 3, 14, 7))


def _to_millis(moment: dt.datetime) -> dt.datetime:
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


_LABELS = ("a", "b b", "ü", 'q"')


def _joined(labels: Any) -> str:
    return ",".join(label for label in _LABELS if label in labels)


_COLUMNS: dict[str, tuple[str, Any]] = {
    "t1": ("tinyint", st.integers(-128, 127)),
    "t2": ("tinyint unsigned", st.integers(0, 255)),
    "s1": ("smallint", st.integers(-(2**15), 2**15 - 1)),
    "s2": ("smallint unsigned", st.integers(0, 2**16 - 1)),
    "m1": ("mediumint", st.integers(-(2**23), 2**23 - 1)),
    "m2": ("mediumint unsigned", st.integers(0, 2**24 - 1)),
    "i1": ("int", st.integers(-(2**31), 2**31 - 1)),
    "i2": ("int unsigned", st.integers(0, 2**32 - 1)),
    "b1": ("bigint", st.integers(-(2**63), 2**63 - 1)),
    "b2": ("bigint unsigned", st.integers(0, 2**64 - 1)),
    "d1": ("decimal(10,2)", st.decimals(-99999999, 99999999, places=2)),
    "d2": ("decimal(38,19)", st.decimals(-(10**18), 10**18, places=19)),
    "d3": ("decimal(9,0)", st.decimals(-999999999, 999999999, places=0)),
    "d4": ("decimal(30,30)", st.decimals(0, 1, places=30).filter(lambda d: d < 1)),
    "f1": ("float", st.floats(width=32, allow_nan=False, allow_infinity=False)),
    "f2": ("double", st.floats(allow_nan=False, allow_infinity=False)),
    "v1": ("varchar(1000) character set utf8mb4", _TEXT),
    "v2": ("varchar(40) character set latin1", _LATIN),
    "v3": ("longtext character set utf8mb4", _TEXT),
    "x1": ("varbinary(300)", st.binary(max_size=300)),
    "x2": ("blob", st.binary(max_size=100)),
    "y1": ("date", st.dates(dt.date(1000, 1, 1))),
    "y2": ("datetime", _MOMENT.map(lambda m: m.replace(microsecond=0))),
    "y3": ("datetime(3)", _MOMENT.map(_to_millis)),
    "y4": ("datetime(6)", _MOMENT),
    "y5": ("timestamp(6) null", _SINCE_EPOCH),
    "y6": ("time(6)", st.timedeltas(dt.timedelta(0), dt.timedelta(hours=838))),
    "y7": ("year", st.integers(1901, 2155)),
    "z1": ("bit(33)", st.integers(0, 2**33 - 1)),
    "z2": ("enum('a','b b','ü','q\"') character set utf8mb4", st.sampled_from(_LABELS)),
    "z3": (
        "set('a','b b','ü','q\"') character set utf8mb4",
        # It reads an empty set as NULL.
        st.sets(st.sampled_from(_LABELS), min_size=1).map(_joined),
    ),
}  # fmt: skip
_ROW = st.tuples(*(st.none() | values for _, values in _COLUMNS.values()))


@pytest.mark.parametrize("name", ["mysql", "mariadb"])
def test_another_decoder_reads_the_same_rows(name: str, request: pytest.FixtureRequest) -> None:
    server: Server = request.getfixturevalue(f"{name}_server")
    cursor = _fresh(server, "i_rows")
    definitions = ", ".join(f"{column} {kind}" for column, (kind, _) in _COLUMNS.items())
    cursor.execute(f"CREATE TABLE t (id int auto_increment primary key, {definitions})")
    source = source_of(server, "i_rows")
    marks = ",".join(["%s"] * len(_COLUMNS))

    # Every example opens two readers: few examples of many rows.
    @settings(max_examples=8, **_QUICK)
    @given(st.lists(_ROW, min_size=15, max_size=25))
    def check(values: list[tuple[Any, ...]]) -> None:
        start = source.head()
        exact = [[repr(v) if isinstance(v, float) else v for v in row] for row in values]
        cursor.executemany(f"INSERT INTO t ({','.join(_COLUMNS)}) VALUES ({marks})", exact)
        cursor.execute("UPDATE t SET i1 = 7, v1 = CONCAT('u', COALESCE(v1, ''))")
        cursor.execute("DELETE FROM t")
        ours = [(r["op"], _parsed(r["before"]), _parsed(r["after"])) for r in rows(source, start)]
        theirs = _theirs(server, "i_rows", start)
        assert len(ours) == 3 * len(values)
        assert ours == theirs

    check()


_DOCUMENTS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(_CHARACTERS, max_size=200),
    lambda inner: (
        st.lists(inner, max_size=6)
        | st.dictionaries(st.text(_CHARACTERS, max_size=20), inner, max_size=6)
    ),
    max_leaves=60,
)


def _nested(depth: int, inside: Any) -> Any:
    for level in range(depth):
        inside = [inside] if level % 2 else {f"level {level}": inside, "": level}
    return inside


def test_another_decoder_reads_the_same_documents(mysql_server: Server) -> None:
    cursor = _fresh(mysql_server, "i_json")
    cursor.execute("CREATE TABLE t (id int auto_increment primary key, j json)")
    source = source_of(mysql_server, "i_json")

    # The padding makes offsets of two bytes, or of four.
    written = st.tuples(_DOCUMENTS, st.integers(0, 80), st.sampled_from([0, 0, 300, 70_000]))

    @settings(max_examples=8, **_QUICK)
    @given(st.lists(written, min_size=5, max_size=8))
    def check(documents: list[tuple[Any, int, int]]) -> None:
        start = source.head()
        for document, depth, padding in documents:
            text = json.dumps(_nested(depth, [document, "p" * padding]))
            cursor.execute("INSERT INTO t (j) VALUES (%s)", (text,))
        cursor.execute("SELECT j FROM t ORDER BY id DESC LIMIT %s", (len(documents),))
        texts = [text for (text,) in cursor.fetchall()][::-1]
        ours = [json.loads(row["after"])["j"] for row in rows(source, start)]
        theirs = [after["j"] for _, _, after in _theirs(mysql_server, "i_json", start)]
        assert len(ours) == len(documents)
        assert ours == theirs
        assert ours == [json.loads(text) for text in texts]

    check()


def _fresh(server: Server, database: str) -> Any:
    sql.execute(server, f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database}")
    cursor = sql.connect(server, database).cursor()
    cursor.execute("SET sql_mode = '', time_zone = '+00:00'")
    return cursor


def _parsed(image: bytes | None) -> dict[str, Any] | None:
    return None if image is None else json.loads(image)


def _theirs(server: Server, database: str, start: Any) -> list[tuple[str, Any, Any]]:
    """Return (op, before, after) of every row since ``start``, as the other decoder reads it."""
    place = {"log_file": start["file"], "log_pos": start["pos"]}
    if server.name == "mariadb":  # Of which it takes no offsets.
        place = {"auto_position": start["gtid_pos"]}
    reader = BinLogStreamReader(
        connection_settings={
            "host": server.host,
            "port": server.port,
            "user": "root",
            "password": "",
        },
        server_id=990_001,
        **place,
        resume_stream=True,
        only_schemas=[database],
        only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
        is_mariadb="auto_position" in place,
    )
    found = []
    try:
        for event in reader:
            for row in event.rows:
                if isinstance(event, UpdateRowsEvent):
                    found.append(("u", _shown(row["before_values"]), _shown(row["after_values"])))
                elif isinstance(event, WriteRowsEvent):
                    found.append(("c", None, _shown(row["values"])))
                else:
                    found.append(("d", _shown(row["values"]), None))
    finally:
        reader.close()
    return found


def _shown(values: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the other decoder in our JSON shapes."""
    return {name: _value(name, value) for name, value in values.items()}


def _value(name: str, value: Any) -> Any:
    kind = _COLUMNS[name][0] if name in _COLUMNS else ""
    if value is None:
        return None
    if kind in ("blob", "varbinary(300)"):
        value = value or b""  # It has an empty text for an empty blob.
        return {"_base64": base64.b64encode(value).decode()}
    if kind == "float":
        return float(np.format_float_scientific(np.float32(value), unique=True))
    for start, shown in _SHOWN.items():
        if kind.startswith(start):
            return shown(kind, value)
    return _document(value) if name == "j" else value


def _moment(kind: str, value: Any) -> Any:
    if isinstance(value, dt.datetime):
        digits = int(kind[kind.index("(") + 1]) if "(" in kind else 0
        text = f"{value:%Y-%m-%dT%H:%M:%S.%f}".zfill(26)[: 20 + digits].rstrip(".")
        return f"{text}Z" if kind.startswith("timestamp") else text
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, dt.timedelta):
        minutes, seconds = divmod(value.days * 86400 + value.seconds, 60)
        clock = f"{minutes // 60:02}:{minutes % 60:02}:{seconds:02}"
        return f"{clock}.{value.microseconds:06}"
    return value


def _document(value: Any) -> Any:
    """Return a JSON document of the other decoder, which leaves its texts encoded."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list):
        return [_document(part) for part in value]
    if isinstance(value, dict):
        return {_document(name): _document(part) for name, part in value.items()}
    return value


_SHOWN = {
    "decimal": lambda kind, value: f"{value:.{int(kind.partition(',')[2].rstrip(')'))}f}",
    "bit": lambda _, value: int(value, 2),
    "set": lambda _, value: _joined(value),
    "date": _moment,
    "time": _moment,
}
