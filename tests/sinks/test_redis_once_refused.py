"""Exactly once into Redis, where an entry is refused: nothing is lost or written twice."""

from dataclasses import replace

import pyarrow as pa
import pytest
import redis

from airflow_provider_deltaforge.errors import FencedError, RetryableError
from airflow_provider_deltaforge.sinks.redis.servers import RedisPipeline
from airflow_provider_deltaforge.testing.sinks import messages, value
from tests.sinks.redis_once import STARTS, at, client, fill, numbers, values


def test_nothing_is_written_while_anything_is_refused(redis_server, stream, open_redis_once):
    admin = client(redis_server)
    admin.set(f"{stream}-text", "x")
    writer = open_redis_once()
    writer.recover()
    given = [(stream, b"k", value(0)), (f"{stream}-text", b"k", value(1)), (stream, b"k", value(2))]

    rejections = writer.write_once(messages(given), STARTS, at(1))

    assert [(one.event_row, one.kind) for one in rejections] == [(1, "routing")]
    assert f"{stream}-text" in rejections[0].reason
    assert values(redis_server, stream) == []
    assert list(writer.write_once(messages([given[0], given[2]]), STARTS, at(1))) == []
    assert values(redis_server, stream) == [value(0), value(2)]


def test_what_was_written_before_a_refusal_is_not_written_again(
    redis_server, stream, open_redis_once
):
    client(redis_server).set(f"{stream}-text", "x")
    writer = open_redis_once()
    writer.recover()
    given = [(stream, b"k", value(n)) for n in range(1500)]
    last = (f"{stream}-text", b"k", value(1500))
    batch, rest = messages([*given, last]), messages(given)

    # Inside a transaction the position ends with the last event: without it, with the one before.
    refused = writer.write_once(batch, at(1), at(1, batch.event_ids[1500].as_py()))
    assert [one.event_row for one in refused] == [1500]
    for _ in range(2):
        assert list(writer.write_once(rest, at(1), at(1, rest.event_ids[1499].as_py()))) == []

    assert values(redis_server, stream) == numbers(range(1500))
    assert open_redis_once().recover() == at(1, rest.event_ids[1499].as_py())


def test_what_a_full_stream_refuses_is_reported_and_the_rest_written_once(
    redis_server, stream, rows, open_redis_once
):
    full = f"{stream}-full"
    fill(redis_server, full)
    writer = open_redis_once()
    writer.recover()
    given = [(stream, b"k", value(0)), (full, b"k", value(1)), (stream, b"k", value(2))]

    rejections = writer.write_once(messages(given), STARTS, at(1))
    assert [(one.event_row, one.kind) for one in rejections] == [(1, "routing")]
    assert list(writer.write_once(messages([given[0], given[2]]), STARTS, at(1))) == []

    alone = writer.write_once(messages([given[1]]), at(1), at(2))
    assert [(one.event_row, one.kind) for one in alone] == [(0, "routing")]
    at_end = [(stream, b"k", value(3)), (full, b"k", value(4))]
    assert [one.event_row for one in writer.write_once(messages(at_end), at(1), at(2))] == [1]
    assert list(writer.write_once(messages(at_end[:1]), at(1), at(3))) == []
    assert values(redis_server, stream) == [value(0), value(2), value(3)]
    assert open_redis_once().recover() == at(3)


def test_killed_in_front_of_a_refusal_it_is_neither_lost_nor_what_is_around_it_repeated(
    redis_server, stream, open_redis_once
):
    fill(redis_server, f"{stream}-full")
    writer = open_redis_once()
    writer.recover()
    names = [stream, f"{stream}-full", stream, f"{stream}-full", stream]
    given = [(name, b"k", value(n)) for n, name in enumerate(names)]
    batch = messages(given)

    # Killed here, nobody has stored what is refused.
    assert [one.event_row for one in writer.write_once(batch, at(1), at(2))] == [1, 3]

    ids = batch.event_ids.to_pylist()
    assert open_redis_once().recover() == at(1, ids[0])
    assert values(redis_server, stream) == numbers([0])
    writer.recover()
    behind = batch.slice(1, 4)
    assert [one.event_row for one in writer.write_once(behind, at(1, ids[0]), at(2))] == [1, 3]
    rest = messages(given[2::2])
    assert list(writer.write_once(rest, at(1, ids[0]), at(2))) == []
    assert values(redis_server, stream) == numbers([0, 2, 4])
    assert open_redis_once().recover() == at(2)


def test_what_was_written_in_front_of_a_refusal_is_not_written_again_if_cut_otherwise(
    redis_server, stream, open_redis_once
):
    fill(redis_server, f"{stream}-full")
    writer = open_redis_once()
    writer.recover()
    names = [stream, stream, f"{stream}-full"]
    batch = messages([(name, b"k", value(n)) for n, name in enumerate(names)])
    assert [one.event_row for one in writer.write_once(batch, at(1), at(3))] == [2]

    with pytest.raises(FencedError, match="cut otherwise"):
        writer.write_once(batch.slice(0, 1), at(1), at(2))

    assert values(redis_server, stream) == numbers([0, 1])
    assert writer.recover() == at(1, batch.event_ids[1].as_py())


def test_the_answer_about_a_refused_entry_may_be_lost(
    redis_server, stream, open_redis_once, monkeypatch
):
    fill(redis_server, f"{stream}-full")
    writer = open_redis_once()
    writer.recover()
    names = [stream, f"{stream}-full", stream, f"{stream}-full"]
    given = [(name, b"k", value(n)) for n, name in enumerate(names)]
    batch, rest = messages(given), messages(given[::2])
    answers = RedisPipeline.answers

    def lose_the_answer(pipe, deadline):
        answers(pipe, deadline)
        writer._drop()
        raise RetryableError("lost")

    with monkeypatch.context() as patched:
        patched.setattr(RedisPipeline, "answers", lose_the_answer)
        with pytest.raises(RetryableError, match="lost"):
            writer.write_once(batch, STARTS, at(1))

    assert values(redis_server, stream) == numbers([0])
    refused = writer.write_once(batch, STARTS, at(1))
    assert [(one.event_row, one.kind) for one in refused] == [(1, "routing"), (3, "routing")]
    assert all(f"{stream}-full" in one.reason for one in refused)
    assert all("exhausted" in one.reason for one in refused)
    with monkeypatch.context() as patched:
        patched.setattr(RedisPipeline, "answers", lose_the_answer)
        with pytest.raises(RetryableError, match="lost"):
            writer.write_once(rest, STARTS, at(1))
    assert list(writer.write_once(rest, STARTS, at(1))) == []
    assert values(redis_server, stream) == numbers([0, 2])
    assert open_redis_once().recover() == at(1)


def test_an_entry_that_is_too_large_takes_no_other_of_its_stream_with_it(
    redis_server, stream, rows, open_redis_once, monkeypatch
):
    """Redis refuses only what is above 1 GiB; here its words come without so much of it."""
    writer = open_redis_once()
    writer.recover()
    answer = redis.ResponseError("ERR Elements are too large to be stored")
    with monkeypatch.context() as patched:
        patched.setattr(RedisPipeline, "send", lambda *_: None)
        patched.setattr(RedisPipeline, "answers", lambda *_: [answer])
        [refused] = writer.write_once(rows(range(3)), STARTS, at(1))

    assert (refused.event_row, refused.kind) == (0, "message_too_large")
    assert list(writer.write_once(rows(range(3)).slice(1, 2), STARTS, at(1))) == []
    assert values(redis_server, stream) == numbers([1, 2])


@pytest.mark.parametrize("first", [0, 1, 999, 1500])
@pytest.mark.parametrize("is_last", [True, False])
def test_an_event_of_two_messages_of_which_one_is_refused_is_left_as_a_whole(
    redis_server, stream, open_redis_once, first, is_last
):
    """As of an update that changes the key: a delete in one stream, and the row in another."""
    full = f"{stream}-full"
    fill(redis_server, full)
    others = [(stream, b"k", value(n)) for n in range(first)]
    behind = [] if is_last else [(stream, b"k", value(first))]
    both = [(stream, b"old", b"null"), (full, b"new", b"{}")]
    batch = messages([*others, *both, *behind])
    event_rows = [*range(first), first, first, *[first + 1 for _ in behind]]
    batch = replace(batch, event_rows=pa.array(event_rows, pa.int32()))
    rest = batch.take(pa.array([n for n, row in enumerate(event_rows) if row != first], pa.int32()))
    writer = open_redis_once()
    writer.recover()

    refused = writer.write_once(batch, STARTS, at(1))
    again = writer.write_once(rest, STARTS, at(1)) if len(rest) else []

    assert {one.event_row for one in refused} == {first}
    assert list(again) == []
    assert values(redis_server, stream) == [
        *numbers(range(first)),
        b"null",
        *numbers(range(first, first + len(behind))),
    ]
    assert open_redis_once().recover() == (at(1) if len(rest) else STARTS)
