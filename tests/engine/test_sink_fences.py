"""The right of an epoch to write: who counts as a former writer, and how long one is waited for."""

import json
import socket
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_deltaforge.engine.base.tuning import TUNING, Tuning
from airflow_provider_deltaforge.engine.deliver import sink_fences
from airflow_provider_deltaforge.engine.deliver.sink_fences import SinkFences
from airflow_provider_deltaforge.errors import FencedError, RetryableError
from airflow_provider_deltaforge.sinks.chunk_rows import ChunkMark
from airflow_provider_deltaforge.sinks.contract import LEASE, take_lease
from airflow_provider_deltaforge.sinks.file import FileSink
from airflow_provider_deltaforge.sinks.http.sink import HttpSink
from airflow_provider_deltaforge.sinks.redis.sink import RedisSink
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.testing.sinks import messages, value
from tests.engine.exact_memory import change, exact_pipeline, held
from tests.engine.in_process import InProcess
from tests.engine.running import RunningLane
from tests.waiting import PATIENCE_S, wait_for, wait_until


@pytest.fixture
def pipeline():
    return InProcess()


@pytest.fixture
def short_lease(pipeline):
    pipeline.tuning = Tuning(lease_s=0.3, lease_renewed_s=0.3, lease_least_s=0.0)


def claim(context, *, over=True):
    """Return a claim of its own; one that is over says at once that it would have to wait."""
    return SinkFences(context).of("out", lambda: over)


def lives_s(pipeline):
    """Return how long the writers that the store knows may live."""
    stored = pipeline.store.items(names.WRITERS, f"{pipeline.name}/out/")
    return [sink_fences.WriterRecord.from_stored(text, key).lives_s for key, text in stored]


def test_of_two_writers_of_an_epoch_one_stays_known_when_the_other_is_closed(pipeline):
    context = pipeline.context()
    first, second = claim(context), claim(context)
    first.enter(LEASE)
    second.enter(LEASE)

    first.leave()

    assert [one.name for one in claim(pipeline.context()).former()] == [LEASE]
    second.leave()
    assert claim(pipeline.context()).former() == []


def test_another_attempt_does_not_begin_to_wait_anew(pipeline, short_lease):
    claim(pipeline.context()).enter(LEASE, lives_s=0.2)
    context = pipeline.context()

    with pytest.raises(RetryableError, match=r"waiting .* more"):
        take_lease(claim(context))

    def taken():
        try:
            take_lease(claim(context))
        except RetryableError:
            return False
        return True

    wait_for("the lease", taken)


def test_a_writer_that_is_closed_is_not_waited_for(pipeline):
    right = claim(pipeline.context())
    take_lease(right)
    right.leave()

    take_lease(claim(pipeline.context()))


def test_what_another_sink_has_not_answered_is_not_overtaken_by_the_log_read_again(monkeypatch):
    hangs, let_go = threading.Event(), threading.Event()

    def hang():
        hangs.set()
        assert let_go.wait(PATIENCE_S)

    def taken_over(_):
        assert hangs.wait(PATIENCE_S)
        exact.refuses = lambda _: False
        raise FencedError("another has taken over")

    made = exact_pipeline(monkeypatch, sinks=("exact", "plain"))
    change(made, "id: plain,", "id: plain, exactly_once: false,")
    made.tuning = replace(made.tuning, lease_s=0.3, lease_renewed_s=0.3, lease_least_s=0.0)
    made.begin_at(exact=0, plain=0)
    exact, plain = held(made, "exact"), held(made, "plain")
    exact.refuses, plain.before_plain = taken_over, hang

    assert RunningLane(made).end().why == "window"
    assert plain.values == []
    kept = made.store.items(names.WRITERS, f"{made.name}/plain/")
    assert len([*kept]) == 1, "the next lane would not wait"
    let_go.set()
    running = RunningLane(made)
    wait_until(lambda: {at["tx"] for at in made.checkpoints().load().values()} == {20})
    made.want("stopped")
    assert running.end().why == "stopped"
    rows = [json.loads(text)["after"] for _, text in plain.values]
    places = [(row["tx"], row["row"]) for row in rows]
    last_begin = max(n for n, place in enumerate(places) if place == (1, 0))
    assert places[last_begin:] == [(tx, row) for tx in range(1, 21) for row in range(3)]
    assert [*made.store.items(names.WRITERS, f"{made.name}/plain/")] == []


def test_a_request_lives_as_long_as_the_kernel_may_send_it(pipeline):
    writer = HttpSink(id="out", url="http://127.0.0.1:9/", send_timeout_secs=7).open("p")

    writer.fence(claim(pipeline.context()))

    assert [seconds >= 7 for seconds in lives_s(pipeline)] == [True]
    writer.close()


def test_a_file_that_was_not_open_yet_gets_nothing_old(pipeline, short_lease, tmp_path):
    sink = FileSink(id="out", path=f"{tmp_path}/${{source.table}}")
    old, new = sink.open("p"), sink.open("p")
    old.fence(claim(pipeline.context()))
    old.write(messages([(f"{tmp_path}/a", None, value(1))]))
    new.fence(claim(pipeline.context(), over=False))
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
        writer.fence(claim(pipeline.context()))

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
    pipeline.tuning = Tuning(lease_renewed_s=0.0)
    right, now_s = claim(pipeline.context()), sink_fences.now_s
    right.hold()
    monkeypatch.setattr(type(pipeline.control), "held_epoch", away)

    right.hold()

    almost_s = TUNING.lease_s - TUNING.lease_least_s
    monkeypatch.setattr(sink_fences, "now_s", lambda: now_s() + almost_s)
    with pytest.raises(RetryableError):
        right.hold()


def away(*_):
    raise RetryableError("the state store is away")


def test_a_lease_that_ended_while_the_store_answered_is_asked_for_again(pipeline, monkeypatch):
    """Frozen between the store's answer and the write: the answer is of long ago."""
    right = claim(pipeline.context())
    freeze_with_the_answer(pipeline, monkeypatch, lambda number: 60 if number == 1 else 0)

    right.hold()

    assert right.left_s() == TUNING.lease_s


def test_nobody_writes_behind_who_came_while_the_store_answered(pipeline, monkeypatch):
    right = claim(pipeline.context())
    freeze_with_the_answer(pipeline, monkeypatch, lambda number: pipeline.context() and 60)

    with pytest.raises(FencedError):
        right.hold()


def test_a_store_that_answers_later_than_a_lease_lasts_gives_none(pipeline, monkeypatch):
    right = claim(pipeline.context())
    freeze_with_the_answer(pipeline, monkeypatch, lambda _: 60)

    with pytest.raises(RetryableError, match="state store"):
        right.hold()


def test_a_process_that_proc_hides_is_not_gone(monkeypatch):
    """Of another user, where /proc is mounted with hidepid."""
    other = subprocess.Popen(["sleep", "60"])
    began = sink_fences._started(other.pid)
    record = sink_fences.WriterRecord(
        sink="out",
        name=LEASE,
        token="old",
        lives_s=0,
        host="here",
        machine=sink_fences._machine(),
        pid=other.pid,
        started=began,
    )
    try:
        assert not sink_fences._is_gone(record)
        monkeypatch.setattr(sink_fences, "Path", Hidden)
        assert not sink_fences._is_gone(record)
    finally:
        other.kill()
    monkeypatch.undo()
    wait_for("the end", lambda: sink_fences._is_gone(record))  # Before anybody has waited for it.
    other.wait()
    assert sink_fences._is_gone(record)


class Hidden(type(Path())):
    def read_text(self, *_):
        raise FileNotFoundError(self)


def freeze_with_the_answer(pipeline, monkeypatch, seconds):
    """Let time pass between the store's answer and whoever asked.

    Args:
        pipeline: whose store.
        monkeypatch: pytest's.
        seconds: how many, by the number of the question.
    """
    now, asked, ask = [1000.0], [0], type(pipeline.control).held_epoch

    def slowly(*told):
        answer = ask(*told)
        asked[0] += 1
        now[0] += seconds(asked[0])
        return answer

    monkeypatch.setattr(sink_fences, "now_s", lambda: now[0])
    monkeypatch.setattr(type(pipeline.control), "held_epoch", slowly)


RIGHTS = ("~orders*", "~_deltaforge:*", "+@connection", "+multi", "+exec", "+xadd")
FENCING = ("+watch", "+get", "+set")
ONCE = ("+xlen", "+hset", "+hmget", "+evalsha", "+script|load")
ROWS = ("+hget", "+expire", "+sadd", "+srem", "+sismember")


@pytest.mark.parametrize("is_exact", [False, True])
def test_the_rights_that_the_page_of_redis_names_are_enough(pipeline, redis_server, is_exact):
    import redis

    admin = redis.Redis.from_url(redis_server.dsn("0"))
    rules = (*RIGHTS, *FENCING, *((*ONCE, *ROWS) if is_exact else ()))
    admin.execute_command("ACL", "SETUSER", "claimer", "on", ">pw", *rules)
    sink = RedisSink(
        id="out",
        uri=redis_server.dsn("0"),
        stream="orders",
        username="claimer",
        password="pw",
        exactly_once=is_exact,
    )
    writer, rows = sink.open(pipeline.name), messages([("orders-claims", b"k", value(1))])
    copier = sink.without_position().open(pipeline.name)
    row_marks = sink.open_row_marks(pipeline.name)
    try:
        writer.fence(claim(pipeline.context()))
        if is_exact:
            assert writer.recover() is None
            copier.fence(claim(pipeline.context()))
            for is_first in (True, False):
                copier.write_chunk(rows, ChunkMark("run/1", "view", is_first))
            assert not row_marks.lost([copier.row_mark, row_marks.leave()])
            writer = copier
        writer.write(rows)
    finally:
        for each in (writer, copier, row_marks):
            each.close()
        admin.acl_deluser("claimer")


class Hooked:
    """A claim that lets something happen behind the store's answer."""

    def __init__(self, right):
        self._right, self.happens = right, None
        self.token = right.token

    def confirm(self):
        self._right.confirm()
        happens, self.happens = self.happens, None
        if happens is not None:
            happens()

    def __getattr__(self, name):
        return getattr(self._right, name)


class RedisPair:
    """An older and a newer driver's connection to one stream, and who looks at the server."""

    def __init__(self, pipeline, server, stream):
        import redis

        self.pipeline, self.stream, self.server = pipeline, stream, server
        self.admin = redis.Redis.from_url(server.dsn("0"))
        self.key = f"_deltaforge:fence:{pipeline.name}:out"
        self.old, self.old_right = self.opened("old"), claim(pipeline.context())
        self.new = self.opened("new")

    def opened(self, name, **settings):
        sink = RedisSink(
            id="out",
            uri=self.server.dsn("0"),
            stream=self.stream,
            client_name=name,
            send_timeout_secs=1,
            **settings,
        )
        return sink.open(self.pipeline.name)

    def take_over(self):
        """Let the newer driver begin, and write."""
        right = claim(self.pipeline.context())
        self.new.fence(right)
        self.write(self.new, 2)
        return right

    def write(self, writer, n):
        writer.write(messages([(self.stream, b"k", value(n))]))

    def cut(self):
        """End the older driver's connections, as a server does with idle clients."""
        for one in self.admin.client_list():
            if one["name"] == "old":
                self.admin.client_kill_filter(_id=one["id"])

    def written(self):
        return [fields[b"event"] for _, fields in self.admin.xrange(self.stream)]

    def close(self):
        self.old.close()
        self.new.close()
        self.admin.delete(self.stream, self.key)
        self.admin.close()


@pytest.fixture
def pair(pipeline, redis_server):
    pair = RedisPair(pipeline, redis_server, f"orders-{pipeline.name}")
    yield pair
    redis_server.resume()
    pair.close()


def test_a_claim_is_not_written_through_a_connection_that_watches_nothing(pair):
    """Frozen between the store's answer and the claim, until Redis has hung up."""
    right = Hooked(pair.old_right)
    pair.old.fence(right)
    pair.write(pair.old, 1)
    pair.admin.delete(pair.key)  # As the page allows.
    pair.cut()

    def replaced():
        pair.take_over()
        pair.cut()

    right.happens = replaced
    with pytest.raises(FencedError):
        until_written(pair, pair.old, 3)

    assert pair.written() == [value(1), value(2)]


@pytest.mark.parametrize("is_cut", [True, False])
def test_a_redis_that_came_back_with_an_older_claim_takes_nothing_old(pair, is_cut):
    """As after a failover that lost the newer one."""
    pair.old.fence(pair.old_right)
    pair.write(pair.old, 1)
    pair.take_over()
    pair.admin.set(pair.key, pair.old_right.token)
    if is_cut:
        pair.cut()

    with pytest.raises(FencedError):
        until_written(pair, pair.old, 3)

    assert pair.written() == [value(1), value(2)]


def until_written(pair, writer, n):
    """Write as the engine does: again after errors that may pass."""
    for _ in range(10):
        try:
            return pair.write(writer, n)
        except RetryableError:
            continue
    raise AssertionError("not written")


def test_a_step_whose_answer_nobody_took_does_not_let_the_next_one_through(pair):
    """Its batch was given up: what it says of the claim is in the answer."""
    pair.old.fence(pair.old_right)
    pair.write(pair.old, 1)
    pair.admin.set(pair.key, "somebody else")  # It arrives in front of the step.
    pair.server.pause()
    with pytest.raises(RetryableError):
        pair.write(pair.old, 3)
    pair.server.resume()
    pair.pipeline.context()

    with pytest.raises(FencedError):
        until_written(pair, pair.old, 4)

    assert pair.written() == [value(1)]


def test_a_redis_that_stood_still_while_it_was_claimed_is_claimed_then(pair):
    pair.server.pause()
    with pytest.raises(RetryableError):
        pair.old.fence(pair.old_right)
    pair.server.resume()

    pair.old.fence(pair.old_right)
    for n in range(5):
        pair.write(pair.old, n)

    assert pair.written() == [value(n) for n in range(5)]
