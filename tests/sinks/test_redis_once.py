"""Exactly once into Redis: the position lies beside the entries."""

import time
import uuid
from dataclasses import replace

import pyarrow as pa
import pytest
import redis

from airflow_provider_deltaforge.errors import FatalError, FencedError, RetryableError
from airflow_provider_deltaforge.sinks.contract import ExactlyOnceWriter, SinkPosition
from airflow_provider_deltaforge.sinks.redis import RedisSink
from tests.servers import redis as servers
from tests.sinks.contract import messages, value

STARTS = SinkPosition({"pos": 0})


def at(pos, event_id=None):
    return SinkPosition({"pos": pos}, event_id)


def client(server):
    return redis.Redis(host=server.host, port=server.port)


def values(server, stream):
    return [fields[b"event"] for _, fields in client(server).xrange(stream)]


def fill(server, name):
    """Use up the ids of a stream, so that it takes nothing more."""
    client(server).xadd(name, {"a": "b"}, id=f"{2**64 - 1}-{2**64 - 1}")


def numbers(span):
    return [value(n) for n in span]


@pytest.fixture
def stream():
    return f"orders-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def rows(stream):
    return lambda span: messages([(stream, b"same", value(n)) for n in span])


@pytest.fixture
def pipeline():
    return f"p-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def open_writer(redis_server, pipeline):
    opened = []

    def do_open(server=redis_server, **settings):
        uri = server.dsn("0")
        sink = RedisSink(id="r", uri=uri, stream="s", exactly_once=True, **settings)
        opened.append(sink.open(pipeline))
        return opened[-1]

    yield do_open
    for writer in opened:
        writer.close()


def test_what_is_written_and_where_it_stands_is_found_again(
    redis_server, stream, rows, open_writer, pipeline
):
    writer = open_writer()
    assert isinstance(writer, ExactlyOnceWriter)
    assert writer.recover() is None

    assert list(writer.write_once(rows(range(5)), STARTS, at(1))) == []
    assert list(writer.write_once(rows(range(5, 9)), at(1), at(2, b"x" * 16))) == []

    assert values(redis_server, stream) == numbers(range(9))
    assert open_writer().recover() == at(2, b"x" * 16)
    assert client(redis_server).exists(f"_deltaforge:{pipeline}:r")


def test_entries_are_the_same_as_those_of_plain_delivery(redis_server, stream, open_writer):
    batch = messages(
        [(stream, b"k", b"{}"), (f"{stream}-2", None, b"[]"), (stream, b"", b"1")],
        headers=[[("h", "é")], None, []],
    )
    for name, settings in ((stream, {}), (f"{stream}-trimmed", {"max_len": 1000})):
        writer = open_writer(**settings)
        writer.write(batch)
        written = self_and_other(redis_server, stream)
        client(redis_server).delete(stream, f"{stream}-2")
        writer.recover()
        writer.write_once(batch, STARTS, at(1))

        assert self_and_other(redis_server, stream) == written, name
        client(redis_server).delete(stream, f"{stream}-2")


def self_and_other(server, stream):
    return [
        [list(fields.items()) for _, fields in client(server).xrange(name)]
        for name in (stream, f"{stream}-2")
    ]


def test_a_zombie_is_refused_and_may_take_over_again(redis_server, stream, rows, open_writer):
    old, new = open_writer(), open_writer()
    old.recover()
    old.write_once(rows(range(3)), STARTS, at(1))
    assert new.recover() == at(1)

    with pytest.raises(FencedError, match="another writer"):
        old.write_once(rows(range(3, 6)), at(1), at(2))
    new.write_once(rows(range(3, 6)), at(1), at(2))
    with pytest.raises(FatalError, match="before recover"):
        old.write_once(rows(range(6, 7)), at(2), at(3))

    assert values(redis_server, stream) == numbers(range(6))
    assert old.recover() == at(2)
    with pytest.raises(FencedError):
        new.write_once(rows(range(6, 7)), at(2), at(3))


def test_a_large_delivery_is_cut_and_goes_on_where_it_was(redis_server, stream, rows, open_writer):
    writer = open_writer()
    writer.recover()
    batch = rows(range(2500))
    step, done = writer._write_step, []

    def fail_before_the_third(*given):
        done.append(1)
        if len(done) == 3:
            raise RetryableError("away")
        return step(*given)

    writer._write_step = fail_before_the_third
    with pytest.raises(RetryableError):
        writer.write_once(batch, at(7), at(8))

    # Killed here, another writer learns how far it came.
    told = open_writer().recover()
    assert told == at(7, batch.event_ids[1999].as_py())
    assert writer.recover() == told
    writer._write_step = step
    assert list(writer.write_once(rows(range(2000, 2500)), at(7), at(8))) == []
    assert values(redis_server, stream) == numbers(range(2500))
    assert open_writer().recover() == at(8)


@pytest.mark.parametrize("failing", [1, 2])
def test_a_lost_answer_is_found_out(redis_server, stream, rows, open_writer, failing):
    writer = open_writer()
    writer.recover()
    ask, asked = writer._answers, []

    def lose_the_answer(line, deadline):
        found = ask(line, deadline)
        asked.append(1)
        if len(asked) == failing:
            writer._drop()
            raise RetryableError("lost")
        return found

    writer._answers = lose_the_answer
    for _ in range(2):
        try:
            writer.write_once(rows(range(1500)), STARTS, at(1))
        except RetryableError:
            continue

    assert len(asked) == 3
    assert values(redis_server, stream) == numbers(range(1500))
    assert open_writer().recover() == at(1)


def test_a_frozen_server_gets_each_entry_once(redis_server, stream, rows, open_writer):
    writer = open_writer(send_timeout_secs=1)
    until(writer.recover)
    until(lambda: writer.write_once(rows(range(3)), STARTS, at(1)))
    redis_server.pause()
    try:
        with pytest.raises(RetryableError, match="no answer"):
            writer.write_once(rows(range(3, 9)), at(1), at(2))
    finally:
        redis_server.resume()

    until(lambda: writer.write_once(rows(range(3, 9)), at(1), at(2)))

    assert values(redis_server, stream) == numbers(range(9))


def until(call, within_s=120):
    deadline = time.monotonic() + within_s
    while True:
        try:
            return call()
        except RetryableError:
            if time.monotonic() > deadline:
                raise


def test_a_killed_server_that_keeps_its_data_gets_each_entry_once(
    redis_server, stream, rows, open_writer
):
    writer = open_writer()
    writer.recover()
    for n in range(6):
        if n in {2, 4}:
            redis_server.kill()
            with pytest.raises(RetryableError):
                writer.write_once(rows(range(n * 10, n * 10 + 10)), at(n), at(n + 1))
            redis_server.start_again()
        batch = rows(range(n * 10, n * 10 + 10))
        until(lambda batch=batch, n=n: writer.write_once(batch, at(n), at(n + 1)))

    assert values(redis_server, stream) == numbers(range(60))


def test_a_server_that_lost_its_data_is_noticed(tmp_path, stream, rows, open_writer):
    server = servers.start_forgetful(tmp_path / "redis")
    try:
        writer = open_writer(server)
        writer.recover()
        writer.write_once(rows(range(3)), STARTS, at(1))
        server.kill()
        server.start_again()

        with pytest.raises(FencedError, match="lost data"):
            until(lambda: writer.write_once(rows(range(3, 6)), at(1), at(2)))
        assert writer.recover() is None
        writer.write_once(rows(range(3, 6)), at(1), at(2))

        assert values(server, stream) == numbers(range(3, 6))
        assert open_writer(server).recover() == at(2)
    finally:
        server.stop()


def test_data_that_went_back_is_noticed(redis_server, stream, rows, open_writer, pipeline):
    # As after the failover to a replica that lagged: the cursor went back with the entries.
    admin, key = client(redis_server), f"_deltaforge:{pipeline}:r"
    writer = open_writer()
    writer.recover()
    writer.write_once(rows(range(3)), STARTS, at(1))
    older = admin.hgetall(key)
    writer.write_once(rows(range(3, 6)), at(1), at(2))
    admin.hset(key, mapping=older)

    with pytest.raises(FencedError, match="lost data"):
        writer.write_once(rows(range(6, 9)), at(2), at(3))

    assert writer.recover() == at(1)


def test_nothing_is_written_while_anything_is_refused(redis_server, stream, open_writer):
    admin = client(redis_server)
    admin.set(f"{stream}-text", "x")
    writer = open_writer()
    writer.recover()
    given = [(stream, b"k", value(0)), (f"{stream}-text", b"k", value(1)), (stream, b"k", value(2))]

    rejections = writer.write_once(messages(given), STARTS, at(1))

    assert [(one.event_row, one.kind) for one in rejections] == [(1, "routing")]
    assert f"{stream}-text" in rejections[0].reason
    assert values(redis_server, stream) == []
    assert list(writer.write_once(messages([given[0], given[2]]), STARTS, at(1))) == []
    assert values(redis_server, stream) == [value(0), value(2)]


def test_what_was_written_before_a_refusal_is_not_written_again(redis_server, stream, open_writer):
    client(redis_server).set(f"{stream}-text", "x")
    writer = open_writer()
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
    assert open_writer().recover() == at(1, rest.event_ids[1499].as_py())


def test_what_a_full_stream_refuses_is_told_and_the_rest_written_once(
    redis_server, stream, rows, open_writer
):
    full = f"{stream}-full"
    fill(redis_server, full)
    writer = open_writer()
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
    assert open_writer().recover() == at(3)


def test_killed_in_front_of_a_refusal_it_is_neither_lost_nor_what_is_around_it_repeated(
    redis_server, stream, open_writer
):
    fill(redis_server, f"{stream}-full")
    writer = open_writer()
    writer.recover()
    names = [stream, f"{stream}-full", stream, f"{stream}-full", stream]
    given = [(name, b"k", value(n)) for n, name in enumerate(names)]
    batch = messages(given)

    # Killed here, nobody has stored what is refused.
    assert [one.event_row for one in writer.write_once(batch, at(1), at(2))] == [1, 3]

    ids = batch.event_ids.to_pylist()
    assert open_writer().recover() == at(1, ids[0])
    assert values(redis_server, stream) == numbers([0])
    writer.recover()
    behind = batch.slice(1, 4)
    assert [one.event_row for one in writer.write_once(behind, at(1, ids[0]), at(2))] == [1, 3]
    rest = messages(given[2::2])
    assert list(writer.write_once(rest, at(1, ids[0]), at(2))) == []
    assert values(redis_server, stream) == numbers([0, 2, 4])
    assert open_writer().recover() == at(2)


def test_what_was_written_in_front_of_a_refusal_is_not_written_again_if_cut_otherwise(
    redis_server, stream, open_writer
):
    fill(redis_server, f"{stream}-full")
    writer = open_writer()
    writer.recover()
    names = [stream, stream, f"{stream}-full"]
    batch = messages([(name, b"k", value(n)) for n, name in enumerate(names)])
    assert [one.event_row for one in writer.write_once(batch, at(1), at(3))] == [2]

    with pytest.raises(FencedError, match="cut otherwise"):
        writer.write_once(batch.slice(0, 1), at(1), at(2))

    assert values(redis_server, stream) == numbers([0, 1])
    assert writer.recover() == at(1, batch.event_ids[1].as_py())


def test_the_answer_about_a_refused_entry_may_be_lost(redis_server, stream, open_writer):
    fill(redis_server, f"{stream}-full")
    writer = open_writer()
    writer.recover()
    names = [stream, f"{stream}-full", stream, f"{stream}-full"]
    given = [(name, b"k", value(n)) for n, name in enumerate(names)]
    batch, rest = messages(given), messages(given[::2])
    ask = writer._answers

    def lose_the_answer(line, deadline):
        ask(line, deadline)
        writer._answers = ask
        writer._drop()
        raise RetryableError("lost")

    writer._answers = lose_the_answer
    with pytest.raises(RetryableError, match="lost"):
        writer.write_once(batch, STARTS, at(1))

    assert values(redis_server, stream) == numbers([0])
    refused = writer.write_once(batch, STARTS, at(1))
    assert [(one.event_row, one.kind) for one in refused] == [(1, "routing"), (3, "routing")]
    assert all(f"{stream}-full" in one.reason for one in refused)
    assert all("exhausted" in one.reason for one in refused)
    writer._answers = lose_the_answer
    with pytest.raises(RetryableError, match="lost"):
        writer.write_once(rest, STARTS, at(1))
    assert list(writer.write_once(rest, STARTS, at(1))) == []
    assert values(redis_server, stream) == numbers([0, 2])
    assert open_writer().recover() == at(1)


def test_an_entry_that_is_too_large_takes_no_other_of_its_stream_with_it(
    redis_server, stream, rows, open_writer
):
    """Redis refuses only what is above 1 GiB; here its words come without so much of it."""
    writer = open_writer()
    writer.recover()
    tell, words = writer._told, "ERR Elements are too large to be stored"
    writer._told = lambda *_: redis.ResponseError(words)

    [refused] = writer.write_once(rows(range(3)), STARTS, at(1))

    assert (refused.event_row, refused.kind) == (0, "message_too_large")
    writer._told = tell
    assert list(writer.write_once(rows(range(3)).slice(1, 2), STARTS, at(1))) == []
    assert values(redis_server, stream) == numbers([1, 2])


def test_without_memory_all_or_nothing(redis_server, stream, rows, open_writer):
    writer = open_writer()
    writer.recover()
    admin = client(redis_server)
    admin.config_set("maxmemory", "1mb")
    try:
        with pytest.raises(RetryableError, match="OOM"):
            writer.write_once(rows(range(9)), STARTS, at(1))
        assert values(redis_server, stream) == []
    finally:
        admin.config_set("maxmemory", "256mb")

    writer.write_once(rows(range(9)), STARTS, at(1))

    assert values(redis_server, stream) == numbers(range(9))


def test_a_script_that_was_forgotten_is_loaded_again(redis_server, stream, rows, open_writer):
    writer = open_writer()
    writer.recover()
    client(redis_server).script_flush()

    writer.write_once(rows(range(3)), STARTS, at(1))

    assert values(redis_server, stream) == numbers(range(3))


def test_a_script_that_is_loaded_over_a_new_connection_is_asked_for_there(
    redis_server, stream, rows, open_writer
):
    writer = open_writer()
    writer.recover()
    client(redis_server).script_flush()
    ask = writer._ask

    def reconnect(*given):
        writer._drop()
        return ask(*given)

    writer._ask = reconnect
    answers, asked = writer._answers, []

    def note(line, deadline):
        asked.append(line)
        return answers(line, deadline)

    writer._answers = note

    writer.write_once(rows(range(3)), STARTS, at(1))

    assert asked[-1] in writer._lines.values()
    assert asked[-1] is not asked[0]
    assert values(redis_server, stream) == numbers(range(3))


def test_a_key_of_the_position_that_holds_something_else_is_named(
    redis_server, stream, rows, open_writer, pipeline
):
    key = f"_deltaforge:{pipeline}:r"
    why = rf"'{key}'.*rename or delete"
    client(redis_server).set(key, "x")
    writer = open_writer()
    with pytest.raises(FatalError, match=why):
        writer.recover()
    client(redis_server).delete(key)
    writer.recover()
    client(redis_server).set(key, "x")

    with pytest.raises(FatalError, match=why):
        writer.write_once(rows(range(3)), STARTS, at(1))

    assert values(redis_server, stream) == []


def test_a_server_that_may_throw_the_position_away_is_refused(redis_server, open_writer):
    admin = client(redis_server)
    admin.config_set("maxmemory-policy", "allkeys-lru")
    try:
        writer = open_writer()
        with pytest.raises(FatalError, match=r"allkeys-lru.*noeviction"):
            writer.recover()
    finally:
        admin.config_set("maxmemory-policy", "noeviction")


def test_the_documented_rights_are_enough(redis_server, stream, rows, open_writer):
    rules = ["on", ">pw", "~orders*", "~_deltaforge:*", "+@connection", "+multi", "+exec"]
    rules += ["+xadd", "+xlen", "+hset", "+hmget", "+evalsha", "+script|load"]
    client(redis_server).execute_command("ACL", "SETUSER", "once", *rules)
    try:
        writer = open_writer(username="once", password="pw")
        writer.recover()
        writer.write_once(rows(range(3)), STARTS, at(1))
    finally:
        client(redis_server).acl_deluser("once")

    assert values(redis_server, stream) == numbers(range(3))


@pytest.mark.parametrize("first", [0, 1, 999, 1500])
@pytest.mark.parametrize("is_last", [True, False])
def test_an_event_of_two_messages_of_which_one_is_refused_is_left_as_a_whole(
    redis_server, stream, open_writer, first, is_last
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
    writer = open_writer()
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
    assert open_writer().recover() == (at(1) if len(rest) else STARTS)
