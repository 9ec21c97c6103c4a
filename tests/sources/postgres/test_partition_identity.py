"""Rows of partitions are logged by the partition's replica identity, under the table's letter."""

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from tests.servers.process import Server
from tests.sources.postgres.copying import source_of as shop_source
from tests.sources.postgres.stream_reading import drop, execute, fresh, rows, source_of

NAME = "partition_identity"
WHOLE = {"id": 1, "v": "x", "n": 7}
FULL, DEFAULT = "REPLICA IDENTITY FULL", "REPLICA IDENTITY DEFAULT"
BY_N = "REPLICA IDENTITY USING INDEX by_n"


@pytest.fixture(
    params=["postgres_server", pytest.param("postgres18_server", marks=pytest.mark.long)]
)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    found: Server = request.getfixturevalue(request.param)
    yield found
    drop(found, NAME)


@pytest.fixture
def olds(server: Server) -> Callable[..., list[tuple[str, Any, Any]]]:
    """Change rows of a partitioned table ``t``; return (op, before, key) but for the inserts."""

    def change(key: str, root: str, part: str, *statements: str) -> list[tuple[str, Any, Any]]:
        fresh(
            server,
            NAME,
            f"CREATE TABLE t (id int {key}, v text, n int) PARTITION BY RANGE (id)",
            "CREATE TABLE p PARTITION OF t FOR VALUES FROM (0) TO (9)",
            "ALTER TABLE p ALTER n SET NOT NULL",
            "CREATE UNIQUE INDEX by_n ON p (n)",
            f"ALTER TABLE t {root}",
            part,
        )
        source = source_of(server, NAME)
        start = source.beginning()
        execute(server, *statements, database=NAME)
        return [
            (row["op"], *(row[name] and json.loads(row[name]) for name in ("before", "key")))
            for row in rows(source, start)
            if row["op"] != "c"
        ]

    return change


CHANGES = (
    "INSERT INTO t VALUES (1, 'x', 7), (3, NULL, 8)",
    "UPDATE t SET id = 2, n = 6 WHERE id = 1",
    "DELETE FROM t",
)


@pytest.mark.parametrize("key", ["PRIMARY KEY", ""])
def test_what_a_keyed_partition_of_a_full_table_leaves_out_is_no_null(olds, key):
    part = f"ALTER TABLE p {DEFAULT}" if key else f"ALTER TABLE p ADD PRIMARY KEY (id), {DEFAULT}"
    found = olds(key, FULL, part, *CHANGES)
    keys = [{"id": n} if key else None for n in (2, 2, 3)]
    assert sorted(before["id"] for _, before, _ in found) == [1, 2, 3]
    assert all(before.keys() == {"id"} for _, before, _ in found)
    assert sorted(map(str, (k for *_, k in found))) == sorted(map(str, keys))


def test_a_full_partition_of_a_full_table_keeps_its_nulls_beside_other_values(olds):
    found = olds("PRIMARY KEY", FULL, f"ALTER TABLE p {FULL}", *CHANGES)
    assert found[0] == ("u", WHOLE, {"id": 2})
    assert ("d", {"id": 3, "v": None, "n": 8}, {"id": 3}) in found


def test_a_full_partition_of_a_table_without_a_key_identifies_its_rows(olds):
    found = olds("", DEFAULT, f"ALTER TABLE p {FULL}", *CHANGES)
    assert found[0] == ("u", WHOLE, None)
    assert ("d", {"id": 2, "v": "x", "n": 6}, None) in found
    assert ("d", {"id": 3, "n": 8}, None) in found


def test_a_partition_with_another_index_gives_that_indexs_columns_and_no_false_key(olds):
    found = olds("PRIMARY KEY", DEFAULT, f"ALTER TABLE p {BY_N}", *CHANGES)
    assert found[0] == ("u", {"n": 7}, {"id": 2})
    assert sorted(map(str, found[1:])) == [str(("d", {"n": n}, None)) for n in (6, 8)]


def test_a_keyed_partition_of_a_table_with_identity_nothing_keeps_the_key(olds):
    found = olds("PRIMARY KEY", "REPLICA IDENTITY NOTHING", f"ALTER TABLE p {DEFAULT}", *CHANGES)
    assert found[0] == ("u", {"id": 1}, {"id": 2})
    assert sorted(map(str, found[1:])) == [str(("d", {"id": n}, {"id": n})) for n in (2, 3)]


def test_the_preflight_judges_partitions_and_the_server_agrees(server):
    def root(name: str, key: str, identity: str, part: str) -> list[str]:
        return [
            f"CREATE TABLE {name} (id int {key}, v text) PARTITION BY RANGE (id)",
            f"CREATE TABLE {name}_p PARTITION OF {name} FOR VALUES FROM (0) TO (9)",
            f"ALTER TABLE {name} {identity}",
            f"ALTER TABLE {name}_p {part}",
        ]

    fresh(
        server,
        NAME,
        *root("bare", "", FULL, DEFAULT),
        *root("fine", "", DEFAULT, FULL),
        *root("keyed", "PRIMARY KEY", FULL, DEFAULT),
        *root("whole", "PRIMARY KEY", FULL, FULL),
        "CREATE TABLE later (id int PRIMARY KEY DEFERRABLE, v text)",
    )
    source = shop_source(server, NAME)
    found = {finding.check: finding for finding in source.preflight()}
    assert found["replica_identity"].data["tables"] == ["public.bare", "public.later"]
    assert "ALTER TABLE public.bare_p REPLICA IDENTITY FULL" in found["replica_identity"].message
    strays = found["partition_identity"]
    assert strays.data["tables"] == ["public.bare", "public.fine", "public.keyed"]
    assert "ALTER TABLE public.keyed_p REPLICA IDENTITY FULL" in strays.message
    assert found["before_image"].data["tables"] == ["public.keyed"]

    source.beginning()
    for table in ("bare", "fine", "keyed", "later", "whole"):
        execute(server, f"INSERT INTO {table} VALUES (1)", database=NAME)
        refused = table in ("bare", "later")
        with pytest.raises(Exception, match="replica identity") if refused else nullcontext():
            execute(server, f"DELETE FROM {table}", database=NAME)


def test_a_deferrable_key_is_no_key_in_stream_and_copy(server):
    fresh(server, NAME, "CREATE TABLE t (id int PRIMARY KEY DEFERRABLE, v text)")
    execute(server, "INSERT INTO t VALUES (1, 'copied')", database=NAME)
    source = source_of(server, NAME)
    snapshotter = source.open_snapshot()
    try:
        start = snapshotter.begin()
        (chunk,) = snapshotter.plan(10)
        (copied,) = [
            row for batch in snapshotter.read(chunk, "run") for row in batch.rows.to_pylist()
        ]
    finally:
        snapshotter.close()
    execute(server, "INSERT INTO t VALUES (2, 'streamed')", database=NAME)
    (streamed,) = rows(source, start)
    assert (copied["key"], streamed["key"]) == (None, None)


def test_truncating_one_partition_sends_nothing_and_the_table_one_event(olds):
    found = olds("PRIMARY KEY", FULL, f"ALTER TABLE p {FULL}", "TRUNCATE p", "TRUNCATE t")
    assert found == [("t", None, None)]
