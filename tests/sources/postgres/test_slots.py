"""Slot and publication: what is created, where a stream begins, and what is refused by name."""

import json
from collections.abc import Iterator
from contextlib import closing
from functools import partial

import pytest

from airflow_provider_deltaforge.engine.spark.frontier import BatchLimit, Frontier, between
from airflow_provider_deltaforge.errors import (
    FatalError,
    PositionLostError,
    RetryableError,
    SpecError,
)
from airflow_provider_deltaforge.events.change import ChangeBatch, Position
from airflow_provider_deltaforge.sources.postgres.positions import lsn_text, parse_lsn
from airflow_provider_deltaforge.sources.postgres.wal import reader as readers
from airflow_provider_deltaforge.sources.postgres.wal import (
    replication_connection,
    replication_session,
)
from tests.servers.process import Server
from tests.sources.postgres.stream_reading import (
    connect,
    drop,
    events,
    execute,
    fresh,
    read_until,
    rows,
    slot_of,
    source_of,
    tuned,
)
from tests.waiting import wait_for

TABLE = "CREATE TABLE t (id int PRIMARY KEY)"
SLOTS = "SELECT slot_name FROM pg_replication_slots WHERE database = '{}' ORDER BY 1"
TABLES = "SELECT schemaname || '.' || tablename FROM pg_publication_tables ORDER BY 1"


def ids(found: list[dict[str, bytes]]) -> list[int]:
    return [json.loads(row["after"])["id"] for row in found]


def test_what_is_created_holds_the_matching_tables(postgres_server: Server, database: str) -> None:
    statements = (
        "CREATE SCHEMA shop",
        "CREATE TABLE shop.orders (id int PRIMARY KEY)",
        "CREATE TABLE shop.notes (id int PRIMARY KEY)",
        "CREATE UNLOGGED TABLE shop.order_cache (id int PRIMARY KEY)",
        'CREATE TABLE "Orders" (id int)',
    )
    execute(postgres_server, *statements, database=database)
    source = source_of(postgres_server, database, tables=("shop.order%", "t", "Orders"))
    begun = source.beginning()
    assert source.beginning() == begun
    assert begun["lsn"] == slot_of(postgres_server, database)[0]
    found = execute(postgres_server, TABLES, database=database)
    assert found == [("public.Orders",), ("public.t",), ("shop.orders",)]
    via_root = "SELECT pubviaroot, puballtables FROM pg_publication"
    assert execute(postgres_server, via_root, database=database) == [(True, False)]


def test_no_pattern_publishes_every_table(postgres_server: Server, database: str) -> None:
    source_of(postgres_server, database, tables=()).beginning()
    every = "SELECT pubviaroot, puballtables FROM pg_publication"
    assert execute(postgres_server, every, database=database) == [(True, True)]


def test_what_may_not_be_created_is_named_with_its_command(
    postgres_server: Server, database: str
) -> None:
    refused = {"publication": {"name": "mine", "create": False}}
    with pytest.raises(FatalError, match=r"source\.publication\.create is false; run: CREATE"):
        source_of(postgres_server, database, **refused).beginning()
    execute(postgres_server, "CREATE PUBLICATION mine FOR TABLE t", database=database)
    slot = {"name": database, "create": False}
    source = source_of(postgres_server, database, slot=slot, **refused)
    with pytest.raises(FatalError, match="pg_create_logical_replication_slot"):
        source.beginning()
    create = f"SELECT pg_create_logical_replication_slot('{database}', 'pgoutput')"
    execute(postgres_server, create, database=database)
    assert source.beginning()["lsn"] == slot_of(postgres_server, database)[0]


def test_a_failover_slot_is_refused_by_a_server_without_any(
    postgres_server: Server, database: str
) -> None:
    source = source_of(postgres_server, database, slot={"name": database, "failover": True})
    with pytest.raises(SpecError, match=r"source\.slot\.failover: needs PostgreSQL 17"):
        source.beginning()


def test_a_failover_slot_that_is_there_is_refused_by_such_a_server_too(
    postgres_server: Server, database: str
) -> None:
    source_of(postgres_server, database).beginning()
    source = source_of(postgres_server, database, slot={"name": database, "failover": True})
    found = {finding.check: finding for finding in source.preflight()}
    assert found["slot_failover"].verdict == "fail"
    with pytest.raises(SpecError, match=r"source\.slot\.failover: needs PostgreSQL 17"):
        source.beginning()


@pytest.fixture
def new_server(postgres18_server: Server) -> Iterator[Server]:
    fresh(postgres18_server, "newest", TABLE)
    yield postgres18_server
    drop(postgres18_server, "newest")


def failover_of(server: Server) -> bool:
    sql = "SELECT failover FROM pg_replication_slots WHERE slot_name = 'newest'"
    ((failover,),) = execute(server, sql)
    return bool(failover)


@pytest.mark.long
def test_a_slot_that_is_there_is_altered_for_failover_when_it_is_opened(
    new_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    plain = source_of(new_server, "newest")
    source = source_of(new_server, "newest", slot={"name": "newest", "failover": True})
    start = plain.beginning()
    assert source.beginning() == start
    (finding,) = [found for found in source.preflight() if found.check == "slot_failover"]
    assert 'ALTER_REPLICATION_SLOT "newest" (FAILOVER true)' in finding.message
    stream = plain.open(start)
    read_until(stream, lambda _: slot_of(new_server, "newest")[1])
    with closing(source.open(start)):
        assert not failover_of(new_server)
    assert "run on a replication connection while nobody reads: ALTER_REPLICATION_SLOT" in (
        caplog.text
    )
    stream.close()
    wait_for("the reader to end", lambda: not slot_of(new_server, "newest")[1])

    execute(new_server, "INSERT INTO t VALUES (1)", database="newest")
    assert ids(rows(source, start)) == [1]
    assert failover_of(new_server)
    assert "slot_failover" not in {found.check for found in source.preflight()}


def test_a_slot_that_sends_prepared_transactions_is_refused(
    postgres_server: Server, database: str
) -> None:
    source = source_of(postgres_server, database)
    create = f"SELECT pg_create_logical_replication_slot('{database}', 'pgoutput', false, true)"
    execute(postgres_server, "CREATE PUBLICATION df FOR ALL TABLES", create, database=database)
    with pytest.raises(FatalError, match=r"\(TWO_PHASE false\)"):
        source.beginning()
    (finding,) = [found for found in source.preflight() if found.check == "slot"]
    assert finding.verdict == "fail"
    assert "two_phase" in finding.message


def test_start_positions_choose_what_comes_first(postgres_server: Server, database: str) -> None:
    earliest = source_of(postgres_server, database)
    first = earliest.beginning()
    execute(postgres_server, "INSERT INTO t VALUES (1)", database=database)
    between = earliest.head()
    execute(postgres_server, "INSERT INTO t VALUES (2)", database=database)
    latest = source_of(postgres_server, database, start_position="latest")
    after = latest.beginning()
    exact = source_of(postgres_server, database, start_position={"lsn": between["lsn"]})
    starts = [earliest.beginning(), exact.beginning(), after]
    assert starts[0] == first
    execute(postgres_server, "INSERT INTO t VALUES (3)", database=database)
    found = [ids(rows(earliest, start)) for start in starts]
    assert found == [[1, 2, 3], [2, 3], [3]]
    for lsn in ("0/1", lsn_text(parse_lsn(earliest.head()["lsn"]) + 1_000_000)):
        outside = source_of(postgres_server, database, start_position={"lsn": lsn})
        with pytest.raises(SpecError, match=r"source\.start_position\.lsn: .* is not in what slot"):
            outside.beginning()


def test_a_position_the_slot_no_longer_has_is_lost(postgres_server: Server, database: str) -> None:
    source = source_of(postgres_server, database)
    start = source.beginning()
    execute(postgres_server, "INSERT INTO t VALUES (1)", database=database)
    end = source.head()
    advance = f"SELECT pg_replication_slot_advance('{database}', '{end['lsn']}')"
    execute(postgres_server, advance, database=database)
    with pytest.raises(PositionLostError, match=r"was confirmed up to .* but we stand at"):
        source.open(start)
    with pytest.raises(PositionLostError, match="position lost"):
        source.reach(start)
    execute(postgres_server, f"SELECT pg_drop_replication_slot('{database}')")
    with pytest.raises(PositionLostError, match="does not exist on this server: changes after"):
        source.open(end)
    with pytest.raises(PositionLostError, match="of cluster 1, but cluster"):
        source.open({**end, "system_id": "1"})


def test_another_plug_ins_slot_is_refused(postgres_server: Server, database: str) -> None:
    create = f"SELECT pg_create_logical_replication_slot('{database}', 'test_decoding')"
    execute(postgres_server, create, database=database)
    with pytest.raises(FatalError, match=r"plug-in test_decoding.*give source\.slot another"):
        source_of(postgres_server, database).beginning()


def test_a_slot_in_use_says_by_whom_and_is_taken_when_free(
    postgres_server: Server, database: str
) -> None:
    # The server has no time of its own that is waited for.
    execute(postgres_server, f"ALTER DATABASE {database} SET wal_sender_timeout = 0")
    source = source_of(postgres_server, database)
    hasty = source_of(postgres_server, database, tuned(leaving_s=0.0, in_use_s=0.5))
    start = source.beginning()
    first, second = source.open(start), hasty.open(start)
    try:
        read_until(first, lambda _: slot_of(postgres_server, database)[1])
        with pytest.raises(RetryableError, match=rf"in use by pid \d+, deltaforge/{source.id}"):
            second.read(5)
        with pytest.raises(FatalError, match="Give each pipeline a slot of its own"):
            wait_for("patience to end", lambda: _fails(second))
        first.close()
        execute(postgres_server, "INSERT INTO t VALUES (1)", database=database)
        wait_for("the slot to be free", lambda: not slot_of(postgres_server, database)[1])
        assert ids(events(read_until(second, events))) == [1]
    finally:
        first.close()
        second.close()


def _fails(reader: readers.PostgresReader) -> None:
    try:
        reader.read(0.5)
    except RetryableError:
        return


def test_a_table_created_later_is_published_with_the_place_where_its_changes_begin(
    postgres_server: Server, database: str
) -> None:
    source = source_of(postgres_server, database, tuned(look_s=0.1), tables=("t", "late_%"))
    start = source.beginning()
    stream = source.open(start)
    statements = (
        "CREATE TABLE late_one (id int PRIMARY KEY)",
        "INSERT INTO late_one VALUES (1)",
        "CREATE TABLE never (id int PRIMARY KEY)",
    )
    try:
        read_until(stream, lambda _: slot_of(postgres_server, database)[1])
        execute(postgres_server, *statements, database=database)
        read_until(stream, lambda _: stream.appeared_tables())
        execute(postgres_server, "INSERT INTO late_one VALUES (2)", database=database)
        chunks = read_until(stream, events)
        assert ids(events(chunks)) == [2]
        (found,) = stream.appeared_tables()
        assert found.table == "public.late_one"
        # It lies behind where reading began, and before the row that the log tells of it.
        assert found.position is not None
        assert source.compare(start, found.position) < 0
        assert source.covers(chunks[-1].end, found.position)
    finally:
        stream.close()
    # The log tells it again to whoever reads from before: nobody can have forgotten it.
    again = source_of(postgres_server, database, tables=("t", "late_%")).open(start)
    try:
        assert ids(events(read_until(again, events))) == [2]
        assert again.appeared_tables() == (found,)
    finally:
        again.close()


def test_a_new_table_is_not_published_against_the_documents_will(
    postgres_server: Server, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    execute(postgres_server, "CREATE PUBLICATION mine FOR TABLE t", database=database)
    mine = {"name": "mine", "create": False}
    source = source_of(postgres_server, database, tuned(look_s=0.1), publication=mine)
    stream = source.open(source.beginning())
    try:
        execute(postgres_server, "CREATE TABLE late (id int PRIMARY KEY)", database=database)
        command = 'ALTER PUBLICATION "mine" ADD TABLE "public"."late"'
        read_until(stream, lambda _: command in caplog.text)
        assert stream.appeared_tables() == ()
    finally:
        stream.close()
    assert execute(postgres_server, TABLES, database=database) == [("public.t",)]


def test_readers_beside_a_pipeline_have_a_slot_and_leave_only_that(
    postgres_server: Server, database: str
) -> None:
    source = source_of(postgres_server, database)
    start = source.beginning()
    execute(postgres_server, "INSERT INTO t VALUES (1)", database=database)
    other = source.beside("Spark/1")
    assert ids(rows(other, start)) == [1]
    once = source.beside("Spark/1", once=True)
    reader = once.open(start)
    try:
        during = other.open(start)
        try:
            for stream in (reader, during):
                assert ids(events(read_until(stream, events))) == [1]
        finally:
            during.close()
    finally:
        reader.close()
    name = other.slot_settings.name

    def listed() -> list[tuple[str]]:
        return execute(postgres_server, SLOTS.format(database))

    wait_for("the temporary slot to end", lambda: listed() == sorted([(database,), (name,)]))
    assert rows(source, start)[0]["event_id"] == rows(other, start)[0]["event_id"]


def test_micro_batches_are_planned_on_one_slot_and_read_from_copies_of_it(
    postgres_server: Server, database: str
) -> None:
    source = source_of(postgres_server, database)
    planner = source.beside("spark")
    frontier = Frontier(planner)
    start = planner.beginning()
    for key in range(6):
        execute(postgres_server, f"INSERT INTO t VALUES ({key})", database=database)
    ends = [start]
    try:
        wait_for("three micro-batches", lambda: _planned(frontier, ends) == 4)
        frontier.acknowledge(ends[1])
        tasks = [source.beside("spark", once=True) for _ in ends[1:]]
        ranges = zip(tasks, ends, ends[1:], strict=False)
        found = [[row for batch in between(*one) for row in batch.to_pylist()] for one in ranges]
    finally:
        frontier.close()
    assert [ids(each) for each in found] == [[0, 1], [2, 3], [4, 5]]
    name = planner.slot_settings.name
    wait_for("the confirmation", lambda: slot_of(postgres_server, name)[0] == ends[1]["lsn"])


def _planned(frontier: Frontier, ends: list[Position]) -> int:
    end = frontier.advance(ends[-1], BatchLimit(events=2), None)
    if end is not None:
        ends.append(end)
    return len(ends)


def test_heartbeats_move_the_log_and_are_no_events(postgres_server: Server, database: str) -> None:
    source = source_of(postgres_server, database, heartbeat_message_s=0.2)
    start = source.beginning()
    stream = source.open(start)
    try:
        found = read_until(stream, lambda got: len(got) >= 2)
    finally:
        stream.close()
    assert events(found) == []
    assert source.compare(found[-1].end, start) > 0


def test_two_patterns_of_one_connection_are_free_of_each_other(
    postgres_server: Server, database: str
) -> None:
    """A slot and a publication of one's own let two pipelines read one database."""
    one = source_of(postgres_server, database)
    two = source_of(postgres_server, database, id="two", slot=f"{database}_two", publication="two")
    starts = [one.beginning(), two.beginning()]
    with connect(postgres_server, database) as connection:
        connection.execute("INSERT INTO t VALUES (1)")
    found = [rows(source, start) for source, start in zip((one, two), starts, strict=True)]
    assert [ids(each) for each in found] == [[1], [1]]
    assert found[0][0]["event_id"] != found[1][0]["event_id"]


def test_a_slot_is_refused_that_is_older_than_its_publication(
    postgres_server: Server, database: str
) -> None:
    slot = {"name": database, "create": False}
    create = f"SELECT pg_create_logical_replication_slot('{database}', 'pgoutput')"
    execute(postgres_server, create, database=database)
    source = source_of(postgres_server, database, slot=slot)
    with pytest.raises(FatalError, match="publication before the slot") as refused:
        source.beginning()
    assert execute(postgres_server, TABLES, database=database) == []
    told = [f.verdict for f in source.preflight() if f.check == "publication"]
    assert told == ["fail"]
    text = str(refused.value)
    commands = text[text.index("CREATE PUBLICATION") : text.index(". What the slot")].split("; ")
    execute(postgres_server, *commands, database=database)
    assert source.beginning()["lsn"] == slot_of(postgres_server, database)[0]


def reads_through_a_new_publication(server: Server, database: str) -> None:
    """Read changes through a publication that was made anew behind them."""
    source = source_of(server, database)
    start = source.beginning()
    statements = (
        "INSERT INTO t VALUES (0)",
        "DROP PUBLICATION df",
        "INSERT INTO t VALUES (1)",
        "CREATE PUBLICATION df FOR TABLE t",
        "INSERT INTO t VALUES (2)",
    )
    execute(server, *statements, database=database)
    found: list[ChangeBatch] = []
    reader = source.open(start)
    lost = "older than the publication.*lost: drop the slot with pg_drop_replication_slot, reset"
    with closing(reader), pytest.raises(PositionLostError, match=lost):
        read_until(reader, lambda so_far: found.extend(so_far[len(found) :]))
    assert ids(events(found)) == [0]


def test_changes_older_than_their_publication_are_lost_and_reported(
    postgres_server: Server, database: str
) -> None:
    reads_through_a_new_publication(postgres_server, database)


@pytest.mark.long
@pytest.mark.parametrize("plain", [True, False])
def test_version_18_that_leaves_them_out_is_heard(
    postgres18_server: Server, monkeypatch: pytest.MonkeyPatch, *, plain: bool
) -> None:
    kind = partial(replication_connection.log_socket, plain=plain)
    monkeypatch.setattr(replication_session, "log_socket", lambda *given, **_: kind(*given))
    quiet = "ALTER DATABASE unpublished SET client_min_messages = error"
    fresh(postgres18_server, "unpublished", TABLE, quiet)
    reads_through_a_new_publication(postgres18_server, "unpublished")
    drop(postgres18_server, "unpublished")
