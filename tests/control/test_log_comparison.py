"""``deltaforge log``: our decoder beside others, on real servers."""

import json
import subprocess
import sys
from contextlib import closing
from dataclasses import replace

import pytest

from airflow_provider_deltaforge.control.log_comparison import LogQuery, compare_log
from airflow_provider_deltaforge.errors import PositionLostError, SpecError
from airflow_provider_deltaforge.sources.postgres.source import PostgresSource
from airflow_provider_deltaforge.spec.load import load
from tests.servers import sql
from tests.sources.mysql.reading import log_unclear_statement
from tests.sources.postgres import type_matrix
from tests.sources.postgres.stream_reading import connect, drop, execute, fresh
from tests.sources.turso.database import Writer
from tests.waiting import wait_until

_MYSQL = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {{name: log, tenant: t}}
spec:
  source:
    type: mysql
    config: {{id: log, dsn: "mysql://df:df-secret@{host}:{port}/{db}", tables: ["{db}.*"]}}
  sinks: [{{type: stdout, config: {{id: out}}}}]
"""
_TYPES = {
    "i": ("int", "-7"),
    "u": ("bigint unsigned", "18446744073709551615"),
    "d": ("decimal(20,4)", "-1.5"),
    "f": ("float", "3.14"),
    "g": ("double", "1e300"),
    "v": ("varchar(300) character set utf8mb4", "'déjà 😀 \"q\"'"),
    "x": ("varbinary(300)", "X'00FF'"),
    "b": ("blob", "'blob'"),
    "y": ("datetime(3)", "'2024-02-29 12:34:56.789'"),
    "z": ("timestamp(6) null", "'2024-02-29 12:34:56.000001'"),
    "t": ("time(6)", "'12:34:56.5'"),
    "a": ("date", "'2024-02-29'"),
    "w": ("bit(9)", "b'101010101'"),
    "o": ("bit(1)", "b'1'"),
    "e": ("enum('a','b')", "'b'"),
    "s": ("set('x','y','z')", "'x,z'"),
    "j": ("json", """'{"k": [1.5, "ü", null, true]}'"""),
    "p": ("point", "ST_GeomFromText('POINT(1 2)')"),
    "n": ("int", "NULL"),
}


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def logged(request):
    """A server with some transactions, its document, and where each of them began."""
    server = request.getfixturevalue(f"{request.param}_server")
    db = "log_twice"
    sql.execute(server, f"DROP DATABASE IF EXISTS {db}", f"CREATE DATABASE {db}")
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in _TYPES.items())
    pipeline = load(_MYSQL.format(host=server.host, port=server.port, db=db))
    log_unclear_statement(server)  # Reading begins before it; a pipeline ends there.
    heads = []
    with closing(sql.connect(server, db)) as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(f"CREATE TABLE kinds (id int primary key, {columns})")
        cursor.execute("CREATE TABLE other (id int primary key)")
        if request.param == "mysql":
            # The library does not read this statement, which lies before every place.
            cursor.execute("CREATE DATABASE IF NOT EXISTS log_elsewhere")
            cursor.execute("CREATE TABLE IF NOT EXISTS log_elsewhere.t (id int)")
            cursor.execute("SET binlog_format = STATEMENT")
            cursor.execute("INSERT INTO log_elsewhere.t VALUES (0)")
            cursor.execute("SET binlog_format = ROW")
            # And its sets of GTIDs know no tags.
            cursor.execute("SET gtid_next = 'AUTOMATIC:blue'")
            cursor.execute("CREATE TABLE tagged (id int primary key)")
            cursor.execute("SET gtid_next = 'AUTOMATIC'")
        values = ", ".join(value for _, value in _TYPES.values())
        for statements in (
            [f"INSERT INTO kinds VALUES (1, {values})", "INSERT INTO other VALUES (1)"],
            ["UPDATE kinds SET i = 8, v = NULL"],
            ["DELETE FROM kinds"],
            [f"INSERT INTO other VALUES {', '.join(f'({n})' for n in range(2, 12))}"],
            ["TRUNCATE TABLE other"],
        ):
            heads.append(pipeline.spec.source.head())
            cursor.execute("BEGIN")
            for statement in statements:
                cursor.execute(statement)
            cursor.execute("COMMIT")
    return pipeline, heads


def place(position):
    return f"{position['file']}:{position['pos']}"


def ops(found):
    return [(change.ours or change.theirs).op for change in found.changes]


def test_both_read_every_type_alike(logged):
    pipeline, heads = logged
    found = compare_log(None, pipeline, LogQuery(place(heads[0]), count=100))

    assert [change.as_dict() for change in found.changes if change.differences] == []
    assert ops(found) == [*"ccud", *["c"] * 10, "t"]
    assert {name for change in found.changes for name in change.not_compared} <= {"after.b"}
    assert json.loads(json.dumps(found.as_dict()))["equal"] is True


def test_a_place_inside_a_transaction_shows_the_whole_of_it(logged):
    pipeline, heads = logged
    inside = {**heads[1], "pos": heads[1]["pos"] + 90}
    found = compare_log(None, pipeline, LogQuery(place(inside), count=1))
    assert (ops(found), found.is_equal) == (["u"], True)


def test_around_a_place_lie_changes_before_and_behind_it(logged, caplog):
    pipeline, heads = logged
    found = compare_log(None, pipeline, LogQuery(place(heads[2]), around=True, count=4))
    assert (ops(found), found.is_equal) == ([*"ccud", *["c"] * 10], True)
    assert "SELECT was logged as a statement" in caplog.text  # Seen, though it may have changed.


def test_a_transaction_is_found_by_its_gtid(logged):
    pipeline, heads = logged
    found = compare_log(None, pipeline, LogQuery(place(heads[2]), count=1))
    gtid = found.changes[0].ours.tx
    again = compare_log(None, pipeline, LogQuery(gtid, count=1))
    assert [(c.ours.op, c.ours.tx, c.theirs.tx) for c in again.changes] == [("d", gtid, gtid)]
    assert again.is_equal


def test_a_transaction_is_found_by_its_tagged_gtid(mysql_server):
    db = "log_tagged"
    sql.execute(mysql_server, f"DROP DATABASE IF EXISTS {db}", f"CREATE DATABASE {db}")
    pipeline = load(_MYSQL.format(host=mysql_server.host, port=mysql_server.port, db=db))
    with closing(sql.connect(mysql_server, db)) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id int primary key)")
        # The other decoder cannot read this statement, and need not.
        cursor.execute("CREATE DATABASE IF NOT EXISTS log_uncaptured")
        cursor.execute("USE log_uncaptured")
        cursor.execute("CREATE TABLE IF NOT EXISTS t (id int)")
        cursor.execute("SET binlog_format = STATEMENT")
        cursor.execute("INSERT INTO t VALUES (0)")
        cursor.execute("SET binlog_format = ROW")
        cursor.execute(f"INSERT INTO {db}.t VALUES (0)")
        cursor.execute(f"USE {db}")
        start = pipeline.spec.source.head()
        cursor.execute("SET gtid_next = 'AUTOMATIC:blue'")
        cursor.execute("INSERT INTO t VALUES (1)")
        cursor.execute("SET gtid_next = 'AUTOMATIC'")
        cursor.execute("INSERT INTO t VALUES (2)")
    found = compare_log(None, pipeline, LogQuery(place(start), count=2))
    assert [change.as_dict() for change in found.changes if change.differences] == []
    assert ops(found) == ["c", "c"]
    tagged, plain = (change.theirs.tx for change in found.changes)
    assert ":blue:" in tagged
    # Behind a set of GTIDs that has the tagged transaction already.
    after = {**start, "file": "", "gtid_set": f"{start['gtid_set']},{tagged}"}
    found = compare_log(None, pipeline, LogQuery(json.dumps(after), count=2))
    assert [change.theirs.tx for change in found.changes] == [plain]
    assert found.is_equal


def test_one_table_is_shown_alone(logged):
    pipeline, heads = logged
    query = LogQuery(place(heads[0]), table="log_twice.other", count=5)
    assert ops(compare_log(None, pipeline, query)) == ["c"] * 11


def dumps(connection):
    with connection.cursor() as cursor:
        cursor.execute("SHOW PROCESSLIST")
        return {row[0] for row in cursor.fetchall() if row[4].startswith("Binlog Dump")}


def test_the_pipelines_own_connection_stays(logged):
    pipeline, heads = logged
    source = pipeline.spec.source
    with closing(source.connect()) as connection:
        former = dumps(connection)
        with closing(source.open(heads[-1])) as reader:
            while reader.read(0.2) is None:
                pass
            [own] = dumps(connection) - former
            assert compare_log(None, pipeline, LogQuery(place(heads[0]), count=1)).is_equal
            assert own in dumps(connection)


@pytest.mark.parametrize("text", ["", "x", "binlog", "0/1A", "{}}", '{"gtid_set": 3}'])
def test_what_names_no_place_is_refused(logged, text):
    with pytest.raises(SpecError, match="--at"):
        compare_log(None, logged[0], LogQuery(text))


_POSTGRES = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {{name: log, tenant: t}}
spec:
  source:
    type: postgres
    config:
      id: log
      dsn: "{dsn}"
      slot: {db}_slot
      publication: {{name: {db}_pub, create: true}}
      tables: ["*.*"]
  sinks: [{{type: stdout, config: {{id: out}}}}]
"""


@pytest.fixture(scope="module")
def wal(postgres_server):
    """A database whose log holds a row of every type, its document, and where that began."""
    db = "log_twice"
    fresh(postgres_server, db, *type_matrix.PREPARE)
    pipeline = load(_POSTGRES.format(dsn=postgres_server.dsn(db), db=db))
    with connect(postgres_server, db) as connection:
        tables = type_matrix.tables(connection.info.server_version // 10000)
        for table in tables:
            connection.execute(table.create)
        connection.execute("CREATE TABLE orders (id int primary key, note text, total numeric)")
        connection.execute("CREATE TABLE full_rows (id int primary key, note text, big text)")
        connection.execute("ALTER TABLE full_rows REPLICA IDENTITY FULL")
        connection.execute('CREATE SCHEMA "o dd"; CREATE TABLE "o dd"."t.x" ("a ""b" int, c text)')
        start = pipeline.spec.source.beginning()
        for table in tables:
            connection.execute(table.fill)
    yield postgres_server, db, pipeline, start
    drop(postgres_server, db)


def slots(server):
    return execute(server, "SELECT slot_name, temporary, confirmed_flush_lsn FROM"
                   " pg_replication_slots WHERE slot_name LIKE 'log_twice%'")  # fmt: skip


def test_both_read_every_type_of_postgres_alike(wal):
    server, _, pipeline, start = wal
    before = slots(server)
    found = compare_log(None, pipeline, LogQuery(start["lsn"], count=10_000))

    differing = [change.as_dict() for change in found.changes if change.differences]
    assert differing == []
    assert len(found.changes) > 200
    skipped = {change.ours.table for change in found.changes if change.not_compared}
    assert len(skipped) == 1  # The array of boxes.
    # The pipeline's slot stands where it stood, and there is no other.
    assert slots(server) == before
    assert len(before) == 1


def test_both_read_updates_deletes_and_truncates_alike(wal):
    server, db, pipeline, _ = wal
    start = pipeline.spec.source.head()
    execute(
        server,
        "INSERT INTO orders VALUES (1, 'it''s new-tuple: [x]:', 1.50), (2, NULL, 'NaN')",
        "UPDATE orders SET total = 2 WHERE id = 1",
        "UPDATE orders SET id = 3 WHERE id = 2",
        "DELETE FROM orders WHERE id = 3",
        "INSERT INTO full_rows VALUES (1, 'old-key: ', (SELECT string_agg(md5(n::text), '') "
        "FROM generate_series(1, 1000) n))",
        "UPDATE full_rows SET note = 'b new-tuple: c' ",
        "DELETE FROM full_rows",
        """INSERT INTO "o dd"."t.x" VALUES (1, NULL)""",
        "TRUNCATE orders, full_rows",
        "SELECT pg_logical_emit_message(true, 'outbox', 'hello')",
        "SELECT pg_logical_emit_message(false, 'outbox', 'outside of any transaction')",
        "INSERT INTO orders VALUES (9, NULL, NULL)",
        database=db,
    )
    found = compare_log(None, pipeline, LogQuery(start["lsn"], count=100))
    assert [change.as_dict() for change in found.changes if change.differences] == []
    assert [change.ours.op for change in found.changes][:10] == [*"ccuudcudct"]
    assert found.changes[-1].ours.after["id"] == 9

    one = compare_log(None, pipeline, LogQuery(start["lsn"], table="public.full_rows"))
    assert [change.ours.op for change in one.changes] == [*"cudt"]
    one = compare_log(None, pipeline, LogQuery(start["lsn"], table='"o dd"."t.x"'))
    assert [change.ours.op for change in one.changes] == ["c"]


def test_a_place_before_the_slot_is_refused(wal):
    with pytest.raises(PositionLostError, match="cannot be read any more"):
        compare_log(None, wal[2], LogQuery('{"lsn": "0/1"}'))
    with pytest.raises(SpecError, match="--at"):
        compare_log(None, wal[2], LogQuery("binlog.000001:4"))
    with pytest.raises(SpecError, match="has no position yet: name a place with --at"):
        compare_log(None, wal[2], LogQuery())


_KILLED = """
import sys, time
from tests.control.test_log_comparison import _POSTGRES, load
source = load(_POSTGRES.format(dsn=sys.argv[1], db="log_twice")).spec.source
with source.connect() as connection:
    start = source.log_position(connection.execute("SELECT confirmed_flush_lsn::text FROM"
        " pg_replication_slots WHERE slot_name = 'log_twice_slot'").fetchone()[0])[0]
changes = source.independent_changes(start, source.head())
print(next(changes), flush=True)
time.sleep(600)
"""


def test_a_look_that_is_killed_leaves_no_slot(wal):
    server, db, _, _ = wal
    command = [sys.executable, "-c", _KILLED, server.dsn(db)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert "IndependentChange" in process.stdout.readline()
        [temporary] = [name for name, is_temporary, _ in slots(server) if is_temporary]
        assert temporary.startswith("log_twice_slot_")
        process.kill()
    wait_until(lambda: len(slots(server)) == 1)


def test_a_wrong_decoder_is_caught(wal):
    """One that rounds, one that forgets a row, one that makes one up."""
    server, db, pipeline, _ = wal
    start = pipeline.spec.source.head()
    execute(server, "TRUNCATE orders", "INSERT INTO orders VALUES (1, 'a', 1.50), (2, 'b', 2)",
            database=db)  # fmt: skip
    truth = list(pipeline.spec.source.independent_changes(start, pipeline.spec.source.head()))
    rounded = replace(truth[1], after={**truth[1].after, "total": "1.5"})
    for lie, expected in (
        ([truth[0], rounded, truth[2]], ["after.total"]),
        (truth[:2], ["only ours"]),
        ([*truth, truth[2]], ["only theirs"]),
    ):
        wrong = type("Wrong", (PostgresSource,), {
            "__module__": __name__, "independent_changes": lambda *_, lie=lie: iter(lie),
        })  # fmt: skip
        source = wrong(**dict(pipeline.spec.source))
        found = compare_log(
            None,
            pipeline.model_copy(
                update={"spec": pipeline.spec.model_copy(update={"source": source})}
            ),
            LogQuery(start["lsn"]),
        )
        differences = [name for change in found.changes for name in change.differences]
        assert (differences, found.is_equal) == (expected, False)


_TURSO = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {{name: log, tenant: t}}
spec:
  source:
    type: turso
    config: {{id: log, url: "{path}", tables: ["*"], cdc_mode: {mode}, auto_create_triggers: true}}
  sinks: [{{type: stdout, config: {{id: out}}}}]
"""


def test_the_engine_and_we_read_a_file_alike(tmp_path):
    writer = Writer(tmp_path / "shop.db")
    writer.run("CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT, price REAL, n INT)")
    writer.run("INSERT INTO items VALUES (1, 'déjà \"q\"', 1.5, 9007199254740993), (2, NULL, 2, 3)")
    writer.run("UPDATE items SET name = 'b' WHERE id = 2")
    writer.run("ALTER TABLE items ADD COLUMN more TEXT", "DELETE FROM items WHERE id = 1")
    writer.close()
    pipeline = load(_TURSO.format(path=tmp_path / "shop.db", mode="native"))
    found = compare_log(None, pipeline, LogQuery("0"))
    assert [change.as_dict() for change in found.changes if change.differences] == []
    assert ops(found) == [*"ccud"]

    number = str(found.changes[2].ours.source["change_id"])
    assert ops(compare_log(None, pipeline, LogQuery(number, count=1))) == ["u"]
    assert ops(compare_log(None, pipeline, LogQuery(number, around=True, count=2))) == [*"ccu"]
    with pytest.raises(SpecError, match="--at"):
        compare_log(None, pipeline, LogQuery("binlog.000001:4"))


def test_a_file_that_is_polled_has_no_log(tmp_path):
    Writer(tmp_path / "shop.db", capture=False).close()
    pipeline = load(_TURSO.format(path=tmp_path / "shop.db", mode="polling"))
    with pytest.raises(SpecError, match="only native capture keeps one"):
        compare_log(None, pipeline, LogQuery("0"))
