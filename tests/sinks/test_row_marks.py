"""Marks behind the rows of snapshots tell what a server came back without."""

import threading
import uuid

import pytest
import redis

from airflow_provider_deltaforge.sinks.nats import NatsSink
from airflow_provider_deltaforge.sinks.redis import RedisSink
from airflow_provider_deltaforge.testing.sinks import messages, value
from tests.sinks import nats_reader as reader


@pytest.fixture
def in_redis(redis_server):
    """Return a sink's marks, what writes rows, and what takes all data from the server."""
    sink = RedisSink(id=uuid.uuid4().hex, uri=redis_server.dsn("0"), stream="s", exactly_once=True)
    client = redis.Redis(host=redis_server.host, port=redis_server.port)
    marks = sink.open_row_marks("p")
    yield marks, lambda: None, client.flushall
    marks.close()


@pytest.fixture
def in_nats(nats_server):
    url, name = nats_server.dsn(), f"S{uuid.uuid4().hex[:8]}"
    reader.add_stream(url, name, f"{name}.>")
    sink = NatsSink(url=url, subject=f"{name}.orders", stream=name, exactly_once=True)
    writer = sink.without_position().open("p")
    marks = sink.open_row_marks("p")

    def write():
        assert not writer.write(messages([(f"{name}.orders", b"k", value(1))]))

    def lose():
        reader.remove_stream(url, name)
        reader.add_stream(url, name, f"{name}.>")

    yield marks, write, lose
    marks.close()
    writer.close()


@pytest.fixture(params=["redis", "nats"])
def destination(request):
    return request.getfixturevalue(f"in_{request.param}")


def test_rows_that_redis_lost_before_the_last_step_of_their_batch_are_known(redis_server):
    sink = RedisSink(id=uuid.uuid4().hex, uri=redis_server.dsn("0"), stream="s", exactly_once=True)
    client, stream = redis.Redis.from_url(redis_server.dsn("0")), f"s{uuid.uuid4().hex}"
    writer, marks = sink.without_position().open("p"), sink.open_row_marks("p")
    rows = messages([(stream, b"k", value(n)) for n in range(40_000)])

    def lose():
        while client.xlen(stream) < 1000:  # In a hurry: the batch takes a moment only.
            pass
        client.delete(*client.keys(f"*{sink.id}*"), stream)

    assert not writer.write(rows.slice(0, 2500))
    held = [writer.row_mark]
    losing = threading.Thread(target=lose)
    client.delete(stream)
    losing.start()
    assert not writer.write(rows)
    losing.join()
    lost = writer.row_mark
    assert not writer.write(rows.slice(0, 2500))

    assert 0 < client.xlen(stream) < 42_500
    assert marks.lost([*held, lost, writer.row_mark]) == {*held, lost}
    client.delete(stream)
    marks.close()
    writer.close()


def test_marks_of_what_is_held_are_found(destination):
    marks, write, _ = destination
    left = []
    for _ in range(3):
        write()
        left.append(marks.leave())

    assert len(set(left)) == 3
    assert marks.lost(left) == set()


def test_what_is_written_behind_a_loss_hides_nothing_of_it(destination):
    marks, write, lose = destination
    write()
    former = [marks.leave()]
    write()
    former.append(marks.leave())
    lose()
    write()
    write()
    later = marks.leave()

    assert marks.lost([*former, later]) == set(former)
