"""Which part of a batch rows and messages are in: no two that have an order are in two."""

import random
import sys
import threading

import numpy as np
import pytest

from airflow_provider_deltaforge.engine.deliver.held_positions import PositionOwner
from airflow_provider_deltaforge.engine.deliver.sink_thread import SinkBatch, SinkConnection
from airflow_provider_deltaforge.engine.render.former_keys import with_former_keys
from airflow_provider_deltaforge.engine.render.key_parts import parts_of_messages, parts_of_rows
from airflow_provider_deltaforge.engine.render.renderer import Renderer
from airflow_provider_deltaforge.sinks.memory import MemorySink
from airflow_provider_deltaforge.testing.changes import change, change_rows
from tests.envelopes.changes import ORIGIN

KEYLESS = {"key": None, "table": "log"}


def image(key, **more):
    pairs = ",".join(f'"{name}":{value}' for name, value in {"id": key, **more}.items())
    return f"{{{pairs}}}".encode()


def event(op, key, before=None, customer=0):
    after = None if op == "d" else image(key, customer=customer)
    old = image(key if before is None else before, customer=customer) if op != "c" else None
    return change(op=op, before=old, after=after, key=image(key))


def rows_of(*events):
    return with_former_keys(change_rows(list(events)))


def parts_of(rows, count=8, **settings):
    messages, _ = Renderer(MemorySink(topic="t", **settings), ORIGIN).render(rows)
    parts = parts_of_messages(messages, rows, count)
    assert len(parts) == len(messages)
    assert ((parts >= 0) & (parts < count)).all()
    return messages, parts.tolist()


def test_a_key_is_in_the_same_part_of_every_batch_and_all_parts_are_used():
    keys = [*range(200), *range(200)]
    parts = parts_of_rows(change_rows([event("c", key) for key in keys]), 4)

    assert parts[:200].tolist() == parts[200:].tolist()
    assert min(np.bincount(parts, minlength=4)) > 60
    assert parts_of_rows(change_rows([event("c", 7)]), 4)[0] == parts[7]


def test_rows_without_a_key_are_in_the_part_of_their_table():
    rows = change_rows([change(**KEYLESS, after=image(n)) for n in range(50)])

    assert len(set(parts_of_rows(rows, 8).tolist())) == 1
    assert len(set(parts_of(rows)[1])) == 1
    tables = change_rows([change(key=None, table=f"t{n}") for n in range(50)])
    assert len(set(parts_of_rows(tables, 8).tolist())) > 4


@pytest.mark.parametrize("op", ["t", "ddl"])
def test_what_concerns_a_whole_table_leaves_one_part(op):
    about = change(op=op, before=None, after=None, key=None)
    events = [event("c", key) for key in range(50)]

    assert len(set(parts_of(rows_of(*events))[1])) > 4
    assert set(parts_of(rows_of(*events, about))[1]) == {0}


@pytest.mark.parametrize("settings", [{}, {"tombstones": True}, {"envelope": "debezium"}], ids=str)
def test_a_row_that_changes_its_key_is_in_one_part_with_both(settings):
    others = [event("c", key) for key in range(100, 150)]
    for old in range(20):
        rows = rows_of(*others, event("c", old), event("u", old + 50, old), event("c", old))
        messages, parts = parts_of(rows, **settings)
        mine = {
            part
            for part, row in zip(parts, messages.event_rows.to_pylist(), strict=True)
            if row >= 50
        }
        assert len(mine) == 1
        assert len(set(parts)) > 4


def test_a_row_whose_message_key_changes_is_in_one_part():
    for customer in range(20):
        rows = rows_of(
            event("c", 1, customer=customer), event("u", 1, customer=customer + 100), event("c", 2)
        )
        _, (first, second, _) = parts_of(rows, key="${after.customer}")
        assert first == second


@pytest.mark.parametrize("seed", range(20))
def test_random_histories_keep_every_order(seed):
    chosen = random.Random(seed)
    events, alive = [], {}
    for _ in range(150):
        key, customer = chosen.randrange(30), chosen.randrange(8)
        if key not in alive:
            events.append(event("c", key, customer=customer))
        elif chosen.random() < 0.2:
            new = chosen.choice([each for each in range(60) if each not in alive])
            events.append(event("u", new, key, customer=customer))
            del alive[key]
            key = new
        elif chosen.random() < 0.2:
            events.append(event("d", key, customer=customer))
        else:
            events.append(event("u", key, customer=customer))
        alive[key] = True
        if events[-1]["op"] == "d":
            del alive[key]
    settings = chosen.choice([{}, {"tombstones": True}, {"key": "${after.customer}"}])
    rows = rows_of(*events)
    messages, parts = parts_of(rows, chosen.choice([2, 3, 8, 64]), **settings)

    together = {}
    keys, former = rows["key"].to_pylist(), rows["former_key"].to_pylist()
    for at, (row, key) in enumerate(
        zip(messages.event_rows.to_pylist(), messages.keys.to_pylist(), strict=True)
    ):
        for name in {("row", keys[row]), ("row", former[row] or keys[row]), ("message", key)}:
            together.setdefault(name, set()).add(parts[at])
    assert {name: found for name, found in together.items() if len(found) > 1} == {}


def test_a_connection_holds_nothing_of_a_batch_that_was_written_in_parts():
    rows = rows_of(*(event("c", key) for key in range(50)))
    sink = MemorySink(topic="t", log="written in parts")
    messages, _ = Renderer(sink, ORIGIN).render(rows)
    connection = SinkConnection(sink, "orders", None, PositionOwner(), threading.Event(), 4)
    held = sys.getrefcount(messages)

    assert not connection.write(SinkBatch(messages, rows=rows)).rejections

    assert sys.getrefcount(messages) == held
    connection.close()
