"""``format("deltaforge")`` inside one Spark session: columns, options, limits, a real MySQL.

And what another application had written when it was killed half-way.
"""

import json
import logging
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_deltaforge.engine.spark.frontier import BatchLimit, Frontier, between
from airflow_provider_deltaforge.engine.spark.source import register
from airflow_provider_deltaforge.engine.spark.table_reader import rows
from airflow_provider_deltaforge.engine.verify.sink_rows import TableRequest
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.sources.mysql.source import MySqlSource
from airflow_provider_deltaforge.sources.scripted import ScriptedSource
from tests.engine.scripted_run import kill
from tests.engine.spark import frame_application, parquet
from tests.servers import sql
from tests.servers.process import family
from tests.waiting import wait_for

pytestmark = pytest.mark.spark

SCRIPTED = "{type: scripted, config: {id: frame, transactions: 100, rows: 3}}"
DRIFT = "{type: mysql, config: {id: a, dsn: 'mysql://df@h/x', on_schema_drift: hold}}"
MYSQL = "{type: mysql, config: {id: shop, dsn: '${FRAME_DSN}', tables: [frame.*]}}"
DOCUMENT = f"""
metadata: {{name: frame, tenant: tests}}
spec:
  source: {MYSQL}
  processors:
    - type: javascript
      inline: "event => event.after && event.after.id === 300 ? [] : event"
  sinks: [{{type: stdout, config: {{id: out}}}}]
"""


@pytest.fixture(scope="module")
def spark(mysql_server):
    from pyspark.sql import SparkSession

    handler = signal.getsignal(signal.SIGINT)  # PySpark sets its own.
    # Workers and planners get the environment that the JVM is started with.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FRAME_DSN", mysql_server.dsn("frame"))
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        builder = SparkSession.builder.master("local[2]").appName("frame")
        for key, value in {
            "spark.ui.enabled": "false",
            "spark.driver.memory": "512m",
            "spark.sql.shuffle.partitions": "1",
        }.items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
        register(session)
        yield session
        _end(session)
    signal.signal(signal.SIGINT, handler)


def _end(session: Any) -> None:
    """End a session with its JVM, which PySpark keeps: no other file has one inside its process."""
    # Py4J says goodbye at the interpreter's exit, when nobody listens to a log any more.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    gateway = session.sparkContext._gateway
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(60)


class Drain:
    """Drains a source with ``availableNow`` into a list, under one checkpoint."""

    def __init__(self, spark: Any, directory: Path, **options: str) -> None:
        self._spark, self._checkpoint, self._options = spark, directory / "checkpoint", options
        self.batches: dict[int, list[Any]] = {}

    def __call__(self) -> list[Any]:
        """Run until the query ends by itself; return what is new."""
        known = set(self.batches)

        def keep(frame: Any, number: int) -> None:
            self.batches[number] = frame.collect()

        changes = self._spark.readStream.format("deltaforge").options(**self._options).load()
        writer = changes.writeStream.foreachBatch(keep).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self._checkpoint)).start()
        assert query.awaitTermination(180)
        return [row for number in sorted(set(self.batches) - known) for row in self.batches[number]]


@pytest.mark.long
def test_a_scripted_log_is_drained_in_bounded_batches_of_whole_transactions(spark, tmp_path):
    drain = Drain(
        spark, tmp_path, source=SCRIPTED, startingPosition='{"tx": 40}', maxEventsPerTrigger="50"
    )

    rows = drain()

    names = [(image["tx"], image["row"]) for image in (json.loads(row.after) for row in rows)]
    assert names == [(tx, row) for tx in range(41, 101) for row in range(3)]
    sizes = [len(batch) for batch in drain.batches.values() if batch]
    assert sizes == [48, 48, 48, 36]
    assert {row.op for row in rows} == {"u"}
    assert json.loads(rows[0].position) == {"sequence": 41}
    assert uuid.UUID(rows[0].event_id).bytes == ScriptedSource(id="frame").event_id(41, 0)
    assert drain() == []


def test_mysql_changes_come_once_each_across_queries_and_processors(spark, mysql_server, tmp_path):
    sql.execute(
        mysql_server,
        "CREATE DATABASE frame",
        "CREATE TABLE frame.items (id INT PRIMARY KEY, name VARCHAR(20), price DECIMAL(8,2))",
        "INSERT INTO frame.items VALUES (0, 'before', 0)",
    )
    drain = Drain(spark, tmp_path, document=DOCUMENT)
    # A new query begins at the head of the log.
    assert drain() == []
    values = ", ".join(f"({n}, 'näme {n}', {n}.50)" for n in range(1, 301))
    sql.execute(
        mysql_server,
        f"INSERT INTO frame.items VALUES {values}",
        "UPDATE frame.items SET price = 9.99 WHERE id BETWEEN 1 AND 10",
    )
    first = drain()
    sql.execute(mysql_server, "DELETE FROM frame.items WHERE id = 0", "FLUSH BINARY LOGS")
    second = drain()

    assert Counter(row.op for row in first) == {"c": 299, "u": 10}
    assert json.loads(first[0].after) == {"id": 1, "name": "näme 1", "price": "1.50"}
    assert json.loads(first[299].before)["price"] == "1.50"
    assert [(row.op, json.loads(row.key), row.after) for row in second] == [("d", {"id": 0}, None)]
    assert len({row.event_id for row in [*first, *second]}) == 310
    assert {(row.db, row.table, row.schema) for row in first} == {("frame", "items", None)}


def test_what_a_killed_application_wrote_is_completed_with_every_event_once(spark, tmp_path):
    transactions = 700
    scripted = f"{{type: scripted, config: {{id: frame, transactions: {transactions}, rows: 3}}}}"
    options = {
        "source": scripted,
        "startingPosition": '{"tx": 0}',
        "maxEventsPerTrigger": "100",
    }
    checkpoint, output = tmp_path / "checkpoint", tmp_path / "output"
    script = [sys.executable, frame_application.__file__, json.dumps(options), checkpoint, output]
    told = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    with (tmp_path / "application.log").open("wb") as log:
        first = subprocess.Popen(script, env=told, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_for(
            "some micro-batches",
            lambda: first.poll() is not None or len(parquet.batches(output)) >= 4,
        )
        assert first.poll() is None, (tmp_path / "application.log").read_text()[-3000:]
    finally:
        for pid in family(first.pid):
            with suppress(ProcessLookupError):  # Some end with the process killed before.
                kill(pid)
        first.wait()
    before = len(parquet.rows(output))

    drain = frame_application.query(spark, options, checkpoint, output)
    assert drain.trigger(availableNow=True).start().awaitTermination(180)

    source = ScriptedSource(id="frame", transactions=transactions, rows=3)
    wanted = {
        (tx, row): {"id": key, "tx": tx, "row": row}
        for tx, row, key in source.events(1, transactions)
    }
    rows = parquet.rows(output)
    images = [json.loads(row["after"]) for row in rows]
    assert 0 < before < len(wanted)
    assert Counter((image["tx"], image["row"]) for image in images) == Counter(wanted.keys())
    assert all(wanted[image["tx"], image["row"]] == image for image in images)
    assert len({row["event_id"] for row in rows}) == len(wanted)


def test_a_password_never_stands_in_an_option(spark):
    source = "{type: mysql, config: {id: a, dsn: 'mysql://df:planted-secret@127.0.0.1:1/x'}}"

    with pytest.raises(Exception, match="holds a password") as caught:
        spark.readStream.format("deltaforge").option("source", source).load()

    assert "planted-secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, "exactly one option"),
        ({"source": SCRIPTED, "path": "x.yaml"}, "exactly one option"),
        ({"path": "/nowhere.yaml"}, "cannot be read"),
        ({"source": "{type: scripted, config: {id: a, colour: red}}"}, "colour"),
        ({"source": SCRIPTED, "maxEventsPerTrigger": "0"}, "maxEventsPerTrigger"),
        ({"source": SCRIPTED, "startingPosition": "earliest"}, "startingPosition"),
        ({"source": DRIFT}, "on_schema_drift"),
        ({"source": SCRIPTED, "speed": "fast"}, "unknown option"),
        ({"source": SCRIPTED[:-2] + ", snapshot: {mode: initial}}}"}, "snapshot"),
    ],
)
def test_a_wrong_option_is_refused_by_name(options, complaint):
    from airflow_provider_deltaforge.engine.spark.source import SourceOptions

    with pytest.raises(SpecError, match=complaint):
        SourceOptions.of(options)


def test_a_document_in_a_file_may_hold_what_an_option_may_not(tmp_path):
    from airflow_provider_deltaforge.engine.spark.source import SourceOptions

    path = tmp_path / "pipeline.yaml"
    path.write_text(
        "metadata: {name: a, tenant: t}\n"
        "spec:\n"
        "  source: {type: mysql, config: {id: a, dsn: 'mysql://df:planted@127.0.0.1:1/x'}}\n"
        "  sinks: [{type: stdout, config: {id: out}}]\n"
    )

    assert SourceOptions.of({"path": str(path)}).document == path.read_text()


def test_readers_of_one_mysql_source_have_server_ids_of_their_own():
    source = MySqlSource(id="shop", dsn="mysql://df@127.0.0.1/x")
    names = ("spark", False), ("spark", True), ("other", False)
    others = [source.beside(name, once=once) for name, once in names]

    assert len({one.replica_id for one in [source, *others]}) == 4
    assert {one.id for one in others} == {"shop"}


def test_a_range_read_again_holds_the_same_events_wherever_chunks_are_cut():
    def read(chunk_transactions: int) -> list[bytes]:
        source = ScriptedSource(
            id="frame", transactions=100, rows=3, chunk_transactions=chunk_transactions
        )
        found = between(source, {"tx": 13}, {"tx": 57})
        return [one for batch in found for one in batch["event_id"].to_pylist()]

    expected = [ScriptedSource(id="frame").event_id(t, r) for t in range(14, 58) for r in range(3)]
    assert read(1) == read(7) == read(100) == expected


@pytest.mark.parametrize("chunk_transactions", [1, 4, 100])
@pytest.mark.parametrize(
    ("limit", "size"),
    [
        (BatchLimit(events=7), 2),
        (BatchLimit(events=1), 1),
        (BatchLimit(nbytes=64 * 3 * 5), 5),
        (BatchLimit(), 50),
    ],
)
def test_the_frontier_obeys_limits_and_ends_at_its_target(chunk_transactions, limit, size):
    source = ScriptedSource(
        id="frame", transactions=100, rows=3, chunk_transactions=chunk_transactions
    )
    frontier = Frontier(source)
    at = {"tx": 10}
    ends = []
    while (end := frontier.advance(at, limit, {"tx": 60})) is not None:
        ends.append(end["tx"])
        at = end

    assert ends == [*range(10 + size, 60, size), 60]


def test_the_frontier_begins_again_where_spark_says():
    source = ScriptedSource(id="frame", transactions=100, rows=1)
    frontier = Frontier(source)
    frontier.advance({"tx": 10}, BatchLimit(events=5), None)

    assert frontier.advance({"tx": 2}, BatchLimit(events=5), None) == {"tx": 7}
    assert frontier.advance({"tx": 100}, BatchLimit(events=5), None) is None


def test_a_first_batch_that_is_run_again_behind_its_end_loses_nothing():
    from pyspark.sql.streaming.datasource import ReadMaxRows

    from airflow_provider_deltaforge.engine.spark.source import ChangeReader, SourceOptions

    growing = "{type: scripted, config: {id: frame, transactions: 0, rate: 200, started_ms: %d}}"
    options = {"source": growing % (time.time() * 1000 - 1000)}
    first = ChangeReader(SourceOptions.of(options))
    begun = first.initialOffset()
    pinned = first.latestOffset(begun, ReadMaxRows(10))
    assert pinned == begun
    time.sleep(0.1)

    # Killed before the first micro-batch was finished: Spark asks for the initial offset anew.
    second = ChangeReader(SourceOptions.of(options))
    moved = second.initialOffset()

    assert moved != begun
    assert second.partitions(moved, pinned) == []
    end = second.latestOffset(pinned, ReadMaxRows(9))
    (part,) = second.partitions(pinned, end)
    assert part.value[0] == json.loads(begun["position"])
    assert sum(batch.num_rows for batch in second.read(part)) == 9


def test_a_table_that_consumers_fill_can_be_verified(spark, tmp_path):
    """The reader for ``verify.reader``: rows in Arrow, of columns that events have."""
    found = pa.table({"id": [1, 2, 3], "total": [0.1, 1e30, None], "loaded": ["x", "x", "x"]})
    (tmp_path / "orders").mkdir()
    pq.write_table(found, tmp_path / "orders" / "part.parquet")
    request = TableRequest("orders", "lake", "shop.orders", "shop", None, "orders", ("id",))
    select = ["id", "CAST(total AS STRING) AS total"]
    batches = list(rows(request, path=f"{tmp_path}/{{name}}", select=select, json=["total"]))
    whole = pa.Table.from_batches(batches)
    assert whole.column("id").to_pylist() == [1, 2, 3]
    assert whole.column("total").to_pylist() == ["0.1", "1.0E30", None]
    assert whole.schema.field("total").metadata == {b"json": b"true"}
    with pytest.raises(SpecError, match="either `table` or `path`"):
        next(rows(request))
