"""The right of an epoch to write: who counts as a former writer, and how long one is waited for."""

import json
import socket
import threading
import time

import pytest

from airflow_provider_deltaforge.engine.deliver import sink_fences
from airflow_provider_deltaforge.engine.deliver.sink_fences import Claims
from airflow_provider_deltaforge.errors import FencedError, RetryableError
from airflow_provider_deltaforge.sinks.contract import LEASE, take_lease
from airflow_provider_deltaforge.sinks.file import FileSink
from airflow_provider_deltaforge.sinks.http.sink import HttpSink
from airflow_provider_deltaforge.sinks.redis.sink import RedisSink
from airflow_provider_deltaforge.storage import names
from tests.engine.in_process import InProcess
from tests.sinks.contract import messages, value
from tests.waiting import wait_for


@pytest.fixture
def pipeline():
    return InProcess()


@pytest.fixture
def short_lease(monkeypatch):
    monkeypatch.setattr(sink_fences, "LEASE_S", 0.3)
    monkeypatch.setattr(sink_fences, "_RENEWED_S", 0.3)


def claim(bench, *, over=True):
    """Return a claim of its own; one that is over says at once that it would have to wait."""
    return Claims(bench).of("out", lambda: over)


def lives_s(pipeline):
    """Return how long the writers that the store knows may live."""
    stored = pipeline.store.items(names.WRITERS, f"{pipeline.name}/out/")
    return [sink_fences.WriterRecord.from_stored(text, key).lives_s for key, text in stored]


def test_of_two_writers_of_an_epoch_one_stays_known_when_the_other_is_closed(pipeline):
    bench = pipeline.bench()
    first, second = claim(bench), claim(bench)
    first.enter(LEASE)
    second.enter(LEASE)

    first.leave()

    assert [one.name for one in claim(pipeline.bench()).former()] == [LEASE]
    second.leave()
    assert claim(pipeline.bench()).former() == []


def test_another_attempt_does_not_begin_to_wait_anew(pipeline, short_lease):
    claim(pipeline.bench()).enter(LEASE, lives_s=0.2)
    bench = pipeline.bench()

    with pytest.raises(RetryableError, match=r"waiting .* more"):
        take_lease(claim(bench))

    def taken():
        try:
            take_lease(claim(bench))
        except RetryableError:
            return False
        return True

    wait_for("the lease", taken)


def test_a_writer_that_is_closed_is_not_waited_for(pipeline):
    right = claim(pipeline.bench())
    take_lease(right)
    right.leave()

    take_lease(claim(pipeline.bench()))


def test_a_request_lives_as_long_as_the_kernel_may_send_it(pipeline):
    writer = HttpSink(id="out", url="http://127.0.0.1:9/", send_timeout_secs=7).open("p")

    writer.fence(claim(pipeline.bench()))

    assert [seconds >= 7 for seconds in lives_s(pipeline)] == [True]
    writer.close()


def test_a_file_that_was_not_open_yet_gets_nothing_old(pipeline, short_lease, tmp_path):
    sink = FileSink(id="out", path=f"{tmp_path}/${{source.table}}")
    old, new = sink.open("p"), sink.open("p")
    old.fence(claim(pipeline.bench()))
    old.write(messages([(f"{tmp_path}/a", None, value(1))]))
    new.fence(claim(pipeline.bench(), over=False))
    new.write(messages([(f"{tmp_path}/b", None, value(2))]))
    new.close()

    with pytest.raises(FencedError):
        old.write(messages([(f"{tmp_path}/b", None, value(1))]))

    assert (tmp_path / "b").read_bytes() == value(2) + b"\n"
    old.close()


def test_a_request_that_is_taken_slowly_outlasts_the_lease(pipeline, short_lease):
    """A request of more bytes than sockets hold, to an endpoint that takes its time."""
    body = json.dumps({"text": "x" * 12_000_000}).encode()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        answered = threading.Thread(target=take_slowly, args=(listener, len(body)), daemon=True)
        answered.start()
        port = listener.getsockname()[1]
        sink = HttpSink(id="out", url=f"http://127.0.0.1:{port}/", send_timeout_secs=30)
        writer = sink.open("p")
        writer.fence(claim(pipeline.bench()))

        assert list(writer.write(messages([(sink.url, None, body)]))) == []

        writer.close()
        answered.join(30)


def take_slowly(listener, size):
    connection, _ = listener.accept()
    with connection:
        connection.recv(1)
        time.sleep(0.8)  # Longer than the lease.
        taken = 1
        while taken < size and (piece := connection.recv(1 << 20)):
            taken += len(piece)
        connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
        while connection.recv(1 << 20):
            pass


def test_a_store_that_is_away_for_a_moment_ends_no_lease(pipeline, monkeypatch):
    right = claim(pipeline.bench())
    right.hold()
    monkeypatch.setattr(sink_fences, "_RENEWED_S", 0.0)
    monkeypatch.setattr(type(pipeline.control), "held_epoch", away)

    right.hold()

    monkeypatch.setattr(sink_fences, "_LEAST_S", sink_fences.LEASE_S)
    with pytest.raises(RetryableError):
        right.hold()


def away(*_):
    raise RetryableError("the state store is away")


RIGHTS = ("~orders*", "~_deltaforge:*", "+@connection", "+multi", "+exec", "+xadd")
FENCING = ("+watch", "+get", "+set")
ONCE = ("+xlen", "+hset", "+hmget", "+evalsha", "+script|load")


@pytest.mark.parametrize("is_exact", [False, True])
def test_the_rights_that_the_page_of_redis_names_are_enough(pipeline, redis_server, is_exact):
    import redis

    admin = redis.Redis.from_url(redis_server.dsn("0"))
    rules = (*RIGHTS, *FENCING, *(ONCE if is_exact else ()))
    admin.execute_command("ACL", "SETUSER", "claimer", "on", ">pw", *rules)
    sink = RedisSink(
        id="out",
        uri=redis_server.dsn("0"),
        stream="orders",
        username="claimer",
        password="pw",
        exactly_once=is_exact,
    )
    writer = sink.open(pipeline.name)
    try:
        writer.fence(claim(pipeline.bench()))
        if is_exact:
            assert writer.recover() is None
        else:
            writer.write(messages([("orders-claims", b"k", value(1))]))
    finally:
        writer.close()
        admin.acl_deluser("claimer")
