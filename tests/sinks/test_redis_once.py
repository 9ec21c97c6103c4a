"""Exactly once into Redis: the position lies beside the entries."""

import time

import pytest

from airflow_provider_deltaforge.errors import FatalError, FencedError, RetryableError
from airflow_provider_deltaforge.sinks.position_contract import ExactlyOnceWriter
from airflow_provider_deltaforge.sinks.redis.servers import RedisPipeline
from airflow_provider_deltaforge.testing.sinks import messages
from tests.servers import redis as servers
from tests.sinks.redis_once import STARTS, at, client, numbers, values


def test_what_is_written_and_where_it_stands_is_found_again(
    redis_server, stream, rows, open_redis_once, pipeline
):
    writer = open_redis_once()
    assert isinstance(writer, ExactlyOnceWriter)
    assert writer.recover() is None

    assert list(writer.write_once(rows(range(5)), STARTS, at(1))) == []
    assert list(writer.write_once(rows(range(5, 9)), at(1), at(2, b"x" * 16))) == []

    assert values(redis_server, stream) == numbers(range(9))
    assert open_redis_once().recover() == at(2, b"x" * 16)
    assert client(redis_server).exists(f"_deltaforge:{pipeline}:r")


def test_entries_are_the_same_as_those_of_plain_delivery(redis_server, stream, open_redis_once):
    batch = messages(
        [(stream, b"k", b"{}"), (f"{stream}-2", None, b"[]"), (stream, b"", b"1")],
        headers=[[("h", "é")], None, []],
    )
    for name, settings in ((stream, {}), (f"{stream}-trimmed", {"max_len": 1000})):
        writer = open_redis_once(**settings)
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


def test_a_zombie_is_refused_and_may_take_over_again(redis_server, stream, rows, open_redis_once):
    old, new = open_redis_once(), open_redis_once()
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


def test_a_large_delivery_is_cut_and_goes_on_where_it_was(
    redis_server, stream, rows, open_redis_once, monkeypatch
):
    writer = open_redis_once()
    writer.recover()
    batch = rows(range(2500))
    send, steps = RedisPipeline.send, []

    def fail_before_the_third(pipe, pieces, answers):
        steps.append(pipe)
        if len(steps) == 3:
            raise RetryableError("away")
        send(pipe, pieces, answers)

    with monkeypatch.context() as patched:
        patched.setattr(RedisPipeline, "send", fail_before_the_third)
        with pytest.raises(RetryableError):
            writer.write_once(batch, at(7), at(8))

    # Killed here, another writer learns how far it came.
    told = open_redis_once().recover()
    assert told == at(7, batch.event_ids[1999].as_py())
    assert writer.recover() == told
    assert list(writer.write_once(rows(range(2000, 2500)), at(7), at(8))) == []
    assert values(redis_server, stream) == numbers(range(2500))
    assert open_redis_once().recover() == at(8)


@pytest.mark.parametrize("failing", [1, 2])
def test_a_lost_answer_is_found_out(
    redis_server, stream, rows, open_redis_once, monkeypatch, failing
):
    writer = open_redis_once()
    writer.recover()
    answers, asked = RedisPipeline.answers, []

    def lose_the_answer(pipe, deadline):
        found = answers(pipe, deadline)
        asked.append(1)
        if len(asked) == failing:
            writer._drop()
            raise RetryableError("lost")
        return found

    monkeypatch.setattr(RedisPipeline, "answers", lose_the_answer)
    for _ in range(2):
        try:
            writer.write_once(rows(range(1500)), STARTS, at(1))
        except RetryableError:
            continue

    assert len(asked) == 3
    assert values(redis_server, stream) == numbers(range(1500))
    assert open_redis_once().recover() == at(1)


def test_a_frozen_server_gets_each_entry_once(redis_server, stream, rows, open_redis_once):
    writer = open_redis_once(send_timeout_secs=1)
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
    redis_server, stream, rows, open_redis_once
):
    writer = open_redis_once()
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


def test_a_server_that_lost_its_data_is_noticed(tmp_path, stream, rows, open_redis_once):
    server = servers.start_forgetful(tmp_path / "redis")
    try:
        writer = open_redis_once(server)
        writer.recover()
        writer.write_once(rows(range(3)), STARTS, at(1))
        server.kill()
        server.start_again()

        with pytest.raises(FencedError, match="lost data"):
            until(lambda: writer.write_once(rows(range(3, 6)), at(1), at(2)))
        assert writer.recover() is None
        writer.write_once(rows(range(3, 6)), at(1), at(2))

        assert values(server, stream) == numbers(range(3, 6))
        assert open_redis_once(server).recover() == at(2)
    finally:
        server.stop()


def test_data_that_went_back_is_noticed(redis_server, stream, rows, open_redis_once, pipeline):
    # As after the failover to a replica that lagged: the cursor went back with the entries.
    admin, key = client(redis_server), f"_deltaforge:{pipeline}:r"
    writer = open_redis_once()
    writer.recover()
    writer.write_once(rows(range(3)), STARTS, at(1))
    older = admin.hgetall(key)
    writer.write_once(rows(range(3, 6)), at(1), at(2))
    admin.hset(key, mapping=older)

    with pytest.raises(FencedError, match="lost data"):
        writer.write_once(rows(range(6, 9)), at(2), at(3))

    assert writer.recover() == at(1)


def test_without_memory_all_or_nothing(redis_server, stream, rows, open_redis_once):
    writer = open_redis_once()
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


def test_a_script_that_was_forgotten_is_loaded_again(redis_server, stream, rows, open_redis_once):
    writer = open_redis_once()
    writer.recover()
    client(redis_server).script_flush()

    writer.write_once(rows(range(3)), STARTS, at(1))

    assert values(redis_server, stream) == numbers(range(3))


def test_a_script_that_is_loaded_over_a_new_connection_is_asked_for_there(
    redis_server, stream, rows, open_redis_once, monkeypatch
):
    writer = open_redis_once()
    writer.recover()
    client(redis_server).script_flush()
    answers, asked = RedisPipeline.answers, []

    def reconnect(pipe, deadline):
        found = answers(pipe, deadline)
        if not asked:
            writer._drop()  # The script is loaded over another connection.
        asked.append(pipe)
        return found

    monkeypatch.setattr(RedisPipeline, "answers", reconnect)

    writer.write_once(rows(range(3)), STARTS, at(1))

    assert asked[-1] in writer._pipes.values()
    assert asked[-1] is not asked[0]
    assert values(redis_server, stream) == numbers(range(3))


def test_a_key_of_the_position_that_holds_something_else_is_named(
    redis_server, stream, rows, open_redis_once, pipeline
):
    key = f"_deltaforge:{pipeline}:r"
    why = rf"'{key}'.*rename or delete"
    client(redis_server).set(key, "x")
    writer = open_redis_once()
    with pytest.raises(FatalError, match=why):
        writer.recover()
    client(redis_server).delete(key)
    writer.recover()
    client(redis_server).set(key, "x")

    with pytest.raises(FatalError, match=why):
        writer.write_once(rows(range(3)), STARTS, at(1))

    assert values(redis_server, stream) == []


def test_a_server_that_may_throw_the_position_away_is_refused(redis_server, open_redis_once):
    admin = client(redis_server)
    admin.config_set("maxmemory-policy", "allkeys-lru")
    try:
        writer = open_redis_once()
        with pytest.raises(FatalError, match=r"allkeys-lru.*noeviction"):
            writer.recover()
    finally:
        admin.config_set("maxmemory-policy", "noeviction")


def test_the_documented_rights_are_enough(redis_server, stream, rows, open_redis_once):
    rules = ["on", ">pw", "~orders*", "~_deltaforge:*", "+@connection", "+multi", "+exec"]
    rules += ["+xadd", "+xlen", "+hset", "+hmget", "+evalsha", "+script|load"]
    client(redis_server).execute_command("ACL", "SETUSER", "once", *rules)
    try:
        writer = open_redis_once(username="once", password="pw")
        writer.recover()
        writer.write_once(rows(range(3)), STARTS, at(1))
    finally:
        client(redis_server).acl_deluser("once")

    assert values(redis_server, stream) == numbers(range(3))
