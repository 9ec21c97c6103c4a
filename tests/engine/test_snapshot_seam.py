"""What the log brings that rows of the snapshot show already, and what they do not show."""

import json
from itertools import count
from typing import ClassVar

import pyarrow as pa
import pytest

from airflow_provider_deltaforge.engine.catch_up.snapshot_seam import SnapshotSeam, TableCuts
from airflow_provider_deltaforge.errors import AccessError
from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA, ChangeBatch
from airflow_provider_deltaforge.sources.contract import TableChunk
from airflow_provider_deltaforge.sources.scripted import ScriptedSource
from airflow_provider_deltaforge.storage.records.snapshots import SnapshotRecord, Snapshots
from tests.engine.in_process import InProcess

SOURCE = ScriptedSource(id="s")
NAME = "db.t"
_ids = count()


def change(op, tx, key, former=None, *, table="t", schema=None, ddl=None):
    """Return a row change; ``key`` and ``former`` are dicts of the key's columns."""

    def image(values):
        return None if values is None else json.dumps({**values, "v": tx}, separators=(",", ":"))

    after = None if op not in ("c", "u") else key
    before = {"u": former or key, "d": key}.get(op)
    return {
        "op": op,
        "db": "db",
        "schema": schema,
        "table": table,
        "before": image(before) and image(before).encode(),
        "after": image(after) and image(after).encode(),
        "key": None if key is None else json.dumps(key, separators=(",", ":")).encode(),
        "ts_ms": tx,
        "tx": tx,
        "row": 0,
        "tx_end": True,
        "event_id": next(_ids).to_bytes(16, "big"),
        "ddl": None if ddl is None else json.dumps(ddl).encode(),
    }


class Positions:
    def after(self, tx):
        return {"tx": tx}


def batch(*rows, end=None, **flags):
    rows = pa.RecordBatch.from_pylist(list(rows), schema=CHANGE_SCHEMA)
    last = rows["tx"][-1].as_py() if rows.num_rows else 0
    return ChangeBatch(rows, Positions(), {"tx": last if end is None else end}, "s", 1, **flags)


def seam(cuts, upto=(), columns=("id",), ended=None, order=(), source=SOURCE):
    """Return the seam of a table whose chunks end at ``upto`` and were read at ``cuts``."""
    chunks = []
    for at, cut in enumerate(cuts):
        bounds = {"columns": list(columns)}
        if order:
            bounds["order"] = list(order)
        if at < len(upto):
            bounds["upto"] = list(upto[at])
        chunks.append((TableChunk(f"{NAME}:{at}", "db", None, "t", bounds), {"tx": cut}))
    tables = {NAME: TableCuts.of(source, chunks)}
    ended = [] if ended is None else ended
    cuts = [cut for _, cut in chunks]
    return SnapshotSeam(source, tables, cuts, lambda *end: ended.append(end), [NAME])


def left(found):
    """Return what is delivered: op, transaction and key of each event."""
    return [
        (row["op"], row["tx"], json.loads(row["key"]) if row["key"] else None)
        for row in found.rows.to_pylist()
    ]


def test_what_the_view_of_a_table_contained_is_left_out():
    whole = batch(change("c", 4, {"id": 1}), change("u", 5, {"id": 1}), change("d", 6, {"id": 1}))

    assert left(seam([5]).without_shown(whole)) == [("d", 6, {"id": 1})]


def test_each_chunk_has_its_own_view():
    rows = [change("u", tx, {"id": key}) for tx in (3, 6, 9) for key in (10, 11, 20, 21)]

    found = left(seam([5, 8, 2], upto=[(10,), (20,)]).without_shown(batch(*rows)))

    assert found == [
        ("u", 3, {"id": 21}),
        ("u", 6, {"id": 10}),
        ("u", 6, {"id": 21}),
        *[("u", 9, {"id": key}) for key in (10, 11, 20, 21)],
    ]


@pytest.mark.parametrize(
    ("columns", "upto", "below", "above"),
    [
        pytest.param(("id",), (-5,), {"id": -5}, {"id": -4}, id="negative"),
        pytest.param(("id",), (1 << 60,), {"id": 1 << 60}, {"id": (1 << 60) + 1}, id="19 digits"),
        pytest.param(("id",), ("7",), {"id": 7}, {"id": 8}, id="a number as text"),
        pytest.param(("a", "b"), (3, -1), {"a": 3, "b": -1}, {"a": 3, "b": 0}, id="two columns"),
        pytest.param(
            ("a",), (3,), {"a": 3, "b": "x"}, {"a": 4, "b": "}"}, id="the first of two columns"
        ),
        pytest.param(('a"b',), (3,), {'a"b': 3}, {'a"b': 4}, id="a name with a quote"),
    ],
)
def test_keys_of_integers_tell_their_chunk(columns, upto, below, above):
    rows = batch(change("u", 4, below), change("u", 4, above))

    found = left(seam([9, 1], upto=[upto], columns=columns).without_shown(rows))

    assert found == [("u", 4, above)]


UUIDS = [f"0a{n}00000-0000-4000-8000-0000000000aa" for n in "19af"]


@pytest.mark.parametrize("names", [("id",), ("a", "id")])
def test_keys_of_uuids_tell_their_chunk(names):
    first = {"a": 5} if len(names) > 1 else {}
    order = [*(["bigint"] * len(first)), "uuid"]
    rows = batch(*(change("u", 4, {**first, "id": text}) for text in UUIDS))

    joined = seam([9, 1], upto=[(*first.values(), UUIDS[1])], columns=names, order=order)

    found = left(joined.without_shown(rows))
    assert found == [("u", 4, {**first, "id": text}) for text in UUIDS[2:]]


def test_texts_that_look_like_uuids_are_in_the_order_of_their_collation():
    rows = batch(*(change("u", 4, {"id": text}) for text in UUIDS))

    joined = seam([9, 1], upto=[(UUIDS[1],)], order=['text collation "da_DK"'])

    assert joined.without_shown(rows) is rows


@pytest.mark.parametrize(
    ("upto", "key"),
    [
        pytest.param(({"hex": "41"},), {"id": "B"}, id="text"),
        pytest.param((5,), {"id": "6"}, id="a text of digits beside numbers"),
        pytest.param((5,), {"id": 6.5}, id="a fraction"),
        pytest.param((5,), {"other": 6}, id="another column"),
        pytest.param((5,), {"id": 9_999_999_999_999_999_999}, id="beyond int64"),
        pytest.param((1 << 64,), {"id": 6}, id="a border beyond int64"),
        pytest.param((5,), None, id="no key"),
    ],
)
def test_of_other_keys_only_what_all_views_contained_is_left_out(upto, key):
    rows = batch(change("c", 3, key), change("u", 4, key), change("u", 6, key))

    found = left(seam([9, 3], upto=[upto]).without_shown(rows))

    assert found == [("u", 4, key), ("u", 6, key)]


class Backwards(ScriptedSource):
    """Its server sorts texts from Z to A, or cannot be asked."""

    asked: ClassVar[list[str]] = []
    refusal: ClassVar[Exception | None] = None

    def open_snapshot(self):
        return self

    def close(self):
        pass

    def chunks_of(self, chunks, keys):
        if self.refusal is not None:
            raise self.refusal
        self.asked.extend(key["id"] for key in keys)
        bounds = [chunk.bounds["upto"][0] for chunk in chunks[:-1]]
        return [sum(key["id"] < bound for bound in bounds) for key in keys]


@pytest.fixture
def backwards(monkeypatch):
    monkeypatch.setattr(Backwards, "asked", [])
    return Backwards(id="s")


def test_the_server_says_which_chunk_a_text_is_in(backwards):
    rows = [change("u", tx, {"id": key}) for tx in (2, 4, 9) for key in ("Z", "N", "B")]
    joined = seam([9, 3, 6], upto=[("P",), ("D",)], source=backwards)

    found = left(joined.without_shown(batch(*rows)))

    assert found == [("u", 4, {"id": "N"}), ("u", 9, {"id": "N"}), ("u", 9, {"id": "B"})]
    assert sorted(backwards.asked) == ["B", "N", "Z"]


def test_a_text_that_moved_between_chunks_arrives_or_leaves(backwards):
    rows = batch(
        change("u", 4, {"id": "N"}, former={"id": "Z"}),
        change("u", 5, {"id": "Y"}, former={"id": "M"}),
        change("u", 6, {"id": "Y"}, former={"id": "X"}),
    )

    found = seam([9, 3], upto=[("P",)], source=backwards).without_shown(rows)

    assert left(found) == [("c", 4, {"id": "N"}), ("d", 5, {"id": "M"})]


def test_behind_its_last_view_and_before_its_first_nobody_asks_of_a_table(backwards):
    joined = seam([9, 3], upto=[("P",)], source=backwards)
    assert left(joined.without_shown(batch(change("u", 2, {"id": "A"}), end=9))) == []
    behind = batch(change("u", 10, {"id": "A"}))

    assert joined.without_shown(behind) is behind
    assert backwards.asked == []


def test_where_the_server_cannot_be_asked_everything_follows_from_there_on(backwards, monkeypatch):
    ended = []
    joined = seam([9, 3], upto=[("P",)], ended=ended, source=backwards)
    joined.without_shown(batch(change("u", 4, {"id": "Z"})))
    monkeypatch.setattr(Backwards, "refusal", AccessError("no"))
    rows = [batch(change("u", tx, {"id": "Z"})) for tx in (5, 6)]

    assert [left(joined.without_shown(each)) for each in rows] == [
        [("u", tx, {"id": "Z"})] for tx in (5, 6)
    ]
    assert ended == [(NAME, {"tx": 4})]


def test_a_row_that_moved_between_chunks_arrives_or_leaves_by_what_is_shown():
    cuts, upto = [9, 5, 9], [(10,), (20,)]
    rows = batch(
        # Moved before one chunk was read and after the other was.
        change("u", 7, {"id": 15}, former={"id": 5}),  # Was gone, and not there yet.
        change("u", 8, {"id": 5}, former={"id": 16}),  # There already, and not gone yet.
        change("u", 7, {"id": 25}, former={"id": 6}),  # Shown in both.
        change("u", 12, {"id": 17}, former={"id": 7}),  # In neither.
    )

    found = seam(cuts, upto).without_shown(rows)

    assert left(found) == [("c", 7, {"id": 15}), ("d", 8, {"id": 16}), ("u", 12, {"id": 17})]
    arrived, gone, moved = found.rows.to_pylist()
    assert (arrived["before"], json.loads(arrived["after"])) == (None, {"id": 15, "v": 7})
    assert (gone["after"], json.loads(gone["before"])) == (None, {"id": 16, "v": 8})
    assert json.loads(moved["before"])["id"] == 7
    ids = {row["tx"]: row["event_id"] for row in rows.rows.to_pylist() if row["tx"] != 7}
    assert (gone["event_id"], moved["event_id"]) == (ids[8], ids[12])


def test_a_truncation_that_all_views_saw_is_left_out():
    rows = batch(change("t", 3, None), change("c", 4, {"id": 1}), change("c", 9, {"id": 2}))

    assert left(seam([5, 8], upto=[(10,)]).without_shown(rows)) == [("c", 9, {"id": 2})]


def test_behind_a_truncation_that_some_views_did_not_see_everything_follows():
    ended = []
    rows = batch(
        change("c", 4, {"id": 30}),
        change("t", 6, None),
        change("c", 7, {"id": 31}),  # In the view of the second chunk, and taken from consumers.
    )

    found = left(seam([5, 8], upto=[(10,)], ended=ended).without_shown(rows))

    assert found == [("t", 6, None), ("c", 7, {"id": 31})]
    assert ended == [(NAME, {"tx": 6})]


def test_a_statement_that_all_views_saw_is_left_out():
    rows = batch(
        change("u", 3, {"id": 1}),
        change("ddl", 4, None, table="_ddl", ddl={"tables": [NAME]}),
        change("u", 5, {"id": 11}),
        change("u", 9, {"id": 1}),
    )

    assert left(seam([5, 8], upto=[(10,)]).without_shown(rows)) == [("u", 9, {"id": 1})]


@pytest.mark.parametrize(
    "ddl",
    [
        {"tables": [NAME, "db.not_copied"]},
        {"tables": [NAME], "copies": [NAME]},
        {"tables": [NAME], "lost": [NAME]},
        {"tables": []},
        {"sql": "DROP DATABASE db"},
    ],
)
def test_behind_a_statement_that_says_too_little_everything_follows(ddl):
    ended = []
    rows = batch(
        change("u", 3, {"id": 1}),
        change("ddl", 4, None, table="_ddl", ddl=ddl),
        change("u", 5, {"id": 1}),
    )

    found = left(seam([9], ended=ended).without_shown(rows))

    assert found == [("ddl", 4, None), ("u", 5, {"id": 1})]
    assert ended == [(NAME, {"tx": 4})]


def test_behind_a_statement_that_some_views_did_not_see_everything_follows():
    ended = []
    rows = batch(
        change("u", 3, {"id": 1}),
        change("ddl", 6, None, table="_ddl", ddl={"tables": [NAME]}),
        change("u", 7, {"id": 11}),
    )

    found = left(seam([5, 8], upto=[(10,)], ended=ended).without_shown(rows))

    assert found == [("ddl", 6, None), ("u", 7, {"id": 11})]
    assert ended == [(NAME, {"tx": 6})]


def test_a_table_renamed_before_its_last_view_is_copied_under_its_new_name():
    ddl = {"tables": [NAME, "db.u"], "renamed": {NAME: "db.u", "db.other": "db.v"}}
    altered = {"tables": [NAME]}
    joined = seam([5, 9], upto=[(10,)])
    first = joined.without_shown(batch(change("ddl", 6, None, table="_ddl", ddl=altered)))
    assert left(first) == [("ddl", 6, None)]  # It has ended the seam for the table.

    found = joined.without_shown(batch(change("ddl", 7, None, table="_ddl", ddl=ddl), end=9))
    later = joined.without_shown(batch(change("ddl", 10, None, table="_ddl", ddl=ddl)))

    (event,) = found.rows.to_pylist()
    assert json.loads(event["ddl"]) == {**ddl, "copies": ["db.u"]}
    (event,) = later.rows.to_pylist()
    assert json.loads(event["ddl"]) == ddl


@pytest.mark.parametrize("fresh", [["out"], []], ids=["fresh", "there before"])
def test_it_is_copied_also_where_sinks_join_without_a_seam(fresh):
    made = InProcess(sinks=("out",))
    records = Snapshots(made.store, made.name)
    run = SnapshotRecord(
        id="r",
        generation=1,
        started_at_ms=1,
        start_position={"tx": 1},
        chunk_count=1,
        tables={NAME: {"chunks": 1, "rows_estimate": 1}},
        fresh_sinks=fresh,
    )
    made.store.transact(records.begin(run, [TableChunk("c", "db", None, "t", {})]))
    done = records.chunk_done("r", "c", NAME, 1, {"tx": 9}, is_single_view=True)
    made.store.transact([done, *records.finish(run)])
    renamed = {"tables": [NAME, "db.u"], "renamed": {NAME: "db.u"}}
    shown = change("u", 3, {"id": 1})
    rows = batch(shown, change("ddl", 4, None, table="_ddl", ddl=renamed))

    joined = SnapshotSeam.of(made.context(), {"tx": 1}, lambda call: call())
    found = joined.without_shown(rows).rows.to_pylist()

    assert [row["op"] for row in found] == (["ddl"] if fresh else ["u", "ddl"])
    assert json.loads(found[-1]["ddl"])["copies"] == ["db.u"]


def test_a_statement_about_another_table_ends_nothing():
    ended = []
    ddl = {"tables": ["db.other"]}
    rows = batch(change("ddl", 4, None, table="_ddl", ddl=ddl), change("u", 5, {"id": 1}))

    assert left(seam([9], ended=ended).without_shown(rows)) == [("ddl", 4, None)]
    assert ended == []


def test_outbox_messages_and_tables_that_were_not_copied_are_never_left_out():
    rows = batch(
        change("c", 3, {"id": 1}, schema="__outbox"),
        change("c", 3, {"id": 1}, table="other"),
    )

    assert seam([9]).without_shown(rows) is rows


def test_what_is_left_of_a_transaction_ends_it():
    rows = [change("c", 3, {"id": key}) for key in (11, 12, 1)]
    for row in rows[:2]:
        row["tx_end"] = False
    open_rows = [change("c", 4, {"id": key}) for key in (13, 2)]
    for row in open_rows:
        row["tx_end"] = False

    found = seam([9, 1], upto=[(10,)]).without_shown(batch(*rows, *open_rows, open_tx=True))

    kept = [
        (row["tx"], json.loads(row["key"])["id"], row["tx_end"]) for row in found.rows.to_pylist()
    ]
    assert kept == [(3, 11, False), (3, 12, True), (4, 13, False)]


def test_behind_the_last_view_the_seam_is_over():
    joined = seam([5, 8], upto=[(10,)])
    joined.without_shown(batch(change("u", 5, {"id": 1}), end=7))
    still = batch(change("u", 8, {"id": 30}))
    assert left(joined.without_shown(still)) == []
    over = batch(change("u", 4, {"id": 30}))

    assert joined.without_shown(over) is over
