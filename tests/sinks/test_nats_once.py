"""The NATS sink with exactly_once, against a real server."""

import asyncio
import pickle
import threading
import uuid

import pytest

from airflow_provider_deltaforge.errors import FatalError, FencedError, RetryableError
from airflow_provider_deltaforge.sinks.nats import NatsSink
from airflow_provider_deltaforge.sinks.nats.writer import BatchDelivery
from airflow_provider_deltaforge.sinks.position_contract import ExactlyOnceWriter, SinkPosition
from airflow_provider_deltaforge.testing.sinks import messages, value
from tests.servers import nats
from tests.sinks import nats_reader as reader
from tests.waiting import wait_until

BEGIN = SinkPosition({"gtid": "a:1"})


@pytest.fixture
def server(nats_server):
    return nats_server


@pytest.fixture
def url(server):
    return server.dsn()


@pytest.fixture
def name(url):
    name = f"S{uuid.uuid4().hex[:8]}"
    reader.add_stream(url, name, f"{name}.>")
    return name


@pytest.fixture
def open_writer(url, name):
    writers = []

    def open_one(pipeline="p", **settings):
        given = {"url": url, "subject": f"{name}.orders", "stream": name, "exactly_once": True}
        writers.append(NatsSink(**{**given, **settings}).open(pipeline))
        return writers[-1]

    yield open_one
    for writer in writers:
        writer.close()


@pytest.fixture
def copier(url, name):
    """Return writers as the engine opens them in other processes for the rows of a snapshot."""
    sink = NatsSink(url=url, subject=f"{name}.orders", stream=name, exactly_once=True)
    travelled = pickle.dumps(sink.without_position())
    writers = []

    def open_one():
        writers.append(pickle.loads(travelled).open("p"))
        return writers[-1]

    yield open_one
    for writer in writers:
        writer.close()


@pytest.fixture
def rows(name):
    return lambda span: messages([(f"{name}.orders", b"%d" % (n % 5), value(n)) for n in span])


@pytest.fixture
def held(url, name):
    return lambda: reader.numbers(reader.values(url, name))


def at(n):
    return SinkPosition({"gtid": f"a:1-{n}"})


def behind(batch, index, before):
    return SinkPosition(before.position, batch.event_ids[index].as_py())


def once(writer, batch, before=BEGIN, after=BEGIN):
    """Write until it is durable, as the engine does."""

    def written():
        try:
            assert list(writer.write_once(batch, before, after)) == []
        except RetryableError:
            return False
        return True

    wait_until(written)


def recovered(writer):
    """Let a writer that is in a hurry find its end."""

    def found():
        try:
            writer.recover()
        except RetryableError:
            return False
        return True

    wait_until(found)


class TestPosition:
    """What a writer that begins finds."""

    def test_it_is_none_before_anything_was_written(self, open_writer):
        writer = open_writer()

        assert isinstance(writer, ExactlyOnceWriter)
        assert writer.recover() is None

    def test_it_is_that_of_the_last_message(self, open_writer, rows, held):
        writer = open_writer()
        writer.recover()
        first, second = rows(range(300)), rows(range(300, 310))

        once(writer, first, BEGIN, at(3))
        once(writer, second, at(3), at(4))

        assert held() == list(range(310))
        assert open_writer().recover() == behind(second, 9, at(3))

    def test_positions_of_any_text_survive(self, open_writer, rows):
        place = SinkPosition({"gtid": "é\n" * 500, "row": 2**53 + 1, "open": {"x": [None, 1]}})
        writer, batch = open_writer(), rows(range(3))
        writer.recover()
        once(writer, batch, place)

        assert open_writer().recover() == behind(batch, 2, place)

    def test_after_a_purge_the_checkpoint_counts(self, url, name, open_writer, rows, held, caplog):
        writer = open_writer()
        writer.recover()
        once(writer, rows(range(3)))
        reader.purge_stream(url, name)

        again = open_writer()
        assert again.recover() is None
        assert "own checkpoint" in caplog.text
        once(again, rows(range(3, 5)))
        assert held() == [3, 4]

    def test_rows_of_a_snapshot_do_not_hide_it(self, url, name, open_writer, copier, rows):
        writer, batch = open_writer(), rows(range(200))
        writer.recover()
        once(writer, batch)
        copying = [copier(), copier()]
        for start in range(200, 600, 100):
            for part, each in enumerate(copying):
                each.write(rows(range(start + part * 50, start + part * 50 + 50)))

        assert open_writer().recover() == behind(batch, 199, BEGIN)
        assert len(reader.values(url, name)) == 600

    def test_rows_of_a_first_snapshot_have_none(self, open_writer, copier, rows):
        copier().write(rows(range(5)))
        copier().write(rows(range(5, 9)))

        assert open_writer().recover() is None

    def test_messages_from_before_exactly_once_have_none(self, open_writer, rows, held):
        open_writer(exactly_once=False).write(rows(range(5)))
        writer, batch = open_writer(), rows(range(5, 9))
        assert writer.recover() is None

        once(writer, batch)

        assert held() == list(range(9))
        assert open_writer().recover() == behind(batch, 3, BEGIN)

    def test_what_came_while_a_snapshot_began_counts(self, open_writer, copier, rows, monkeypatch):
        writer, late = open_writer(), rows(range(3, 6))
        writer.recover()
        once(writer, rows(range(3)))
        run, began = BatchDelivery.run, []

        async def run_after_the_stream(delivery, streams, more):
            if not began:
                began.append(delivery)
                await asyncio.to_thread(once, writer, late, at(2))
            await run(delivery, streams, more)

        monkeypatch.setattr(BatchDelivery, "run", run_after_the_stream)
        copier().write(rows(range(10, 15)))
        assert len(began) == 1

        assert open_writer().recover() == behind(late, 2, at(2))


class TestRefusals:
    """What the stream cannot take."""

    def test_nothing_of_a_batch_with_a_refused_message_is_stored(self, name, open_writer, held):
        values = [value(0), b"x" * 1_048_576, value(2)]
        batch = messages([(f"{name}.orders", b"k", each) for each in values])
        writer = open_writer()
        writer.recover()

        (rejection,) = writer.write_once(batch, BEGIN, at(1))

        assert (rejection.event_row, rejection.kind) == (1, "message_too_large")
        assert held() == []

    def test_a_full_stream_is_retryable_with_its_reason(self, url, name, open_writer, rows, held):
        reader.change_stream(url, name, max_bytes=30_000, discard="new")
        writer = open_writer()
        writer.recover()
        batch = rows(range(400))
        with pytest.raises(RetryableError, match="maximum bytes exceeded"):
            writer.write_once(batch, BEGIN, at(1))
        assert 0 < len(held()) < 400
        reader.change_stream(url, name, max_bytes=10_000_000)

        once(writer, batch)

        assert held() == list(range(400))

    @pytest.mark.parametrize(
        "settings", [{"retention": "workqueue"}, {"retention": "interest"}, {"storage": "memory"}]
    )
    def test_a_stream_that_can_lose_its_end_is_refused(self, settings, url, open_writer):
        (setting,) = settings
        other = f"T{uuid.uuid4().hex[:8]}"
        reader.add_stream(url, other, f"{other}.>", **settings)

        with pytest.raises(FatalError, match=rf"with {setting}: .*cannot keep our position"):
            open_writer(stream=other, subject=f"{other}.x").recover()

    def test_a_stream_of_somebody_else_is_refused(self, url, name, open_writer, rows):
        reader.publish(url, f"{name}.orders")
        with pytest.raises(FatalError, match=r"written by somebody else.*nats stream purge"):
            open_writer().recover()

        reader.purge_stream(url, name)
        writer = open_writer()
        writer.recover()
        once(writer, rows(range(3)))
        with pytest.raises(FatalError, match="written by the sink p/nats"):
            open_writer("other").recover()

    def test_another_publisher_is_noticed(self, url, name, open_writer, rows):
        writer = open_writer()
        writer.recover()
        once(writer, rows(range(3)))
        reader.publish(url, f"{name}.orders")

        with pytest.raises(FatalError, match="written by somebody else"):
            writer.write_once(rows(range(3, 300)), BEGIN, BEGIN)


class TestFence:
    """Two writers of one sink: a driver that was taken for dead, and the one that follows."""

    @pytest.fixture
    def zombie(self, open_writer, rows):
        writer = open_writer()
        writer.recover()
        once(writer, rows(range(3)))
        return writer

    def test_a_zombie_is_shut_out_by_the_first_message(self, zombie, open_writer, rows, held):
        new = open_writer()
        new.recover()
        once(new, rows(range(3, 6)))

        for _ in range(2):
            with pytest.raises(FencedError, match="another writer took stream"):
                zombie.write_once(rows(range(3, 200)), BEGIN, BEGIN)

        once(new, rows(range(6, 9)))
        assert held() == list(range(9))

    def test_a_zombie_that_wakes_before_the_first_message_is_no_harm(
        self, zombie, open_writer, rows, held
    ):
        new = open_writer()
        new.recover()
        late = rows(range(3, 5))
        once(zombie, late, at(1))

        with pytest.raises(FencedError):
            new.write_once(rows(range(3, 300)), at(1), at(2))
        assert held() == list(range(5))
        assert new.recover() == behind(late, 1, at(1))
        once(new, rows(range(5, 300)), at(1))

        with pytest.raises(FencedError):
            zombie.write_once(rows(range(5, 6)), at(1), at(2))
        assert held() == list(range(300))

    def test_two_at_once_give_one_log(self, name, open_writer, rows, held):
        """Each goes on at what it finds, as its lane does; the log has no hole and no copy."""
        ends = []

        def carry():
            writer = open_writer()
            known, all_ids = writer.recover(), rows(range(600)).event_ids.to_pylist()
            while True:
                first = 0 if known is None else all_ids.index(known.event_id) + 1
                if first == 600:
                    ends.append(first)
                    return
                batch = rows(range(first, min(600, first + 150)))
                try:
                    writer.write_once(batch, BEGIN, BEGIN)
                    known = behind(batch, len(batch) - 1, BEGIN)
                except FencedError:
                    known = writer.recover()

        threads = [threading.Thread(target=carry) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)

        assert ends == [600] * 3
        assert held() == list(range(600))


class TestOutage:
    """A lost connection leaves open what was stored."""

    @pytest.fixture
    def server(self, tmp_path):
        server = nats.start(tmp_path / "nats")
        yield server
        server.stop()

    def test_a_killed_server(self, server, open_writer, rows, held):
        writer = open_writer(send_timeout_secs=2, connect_timeout_secs=2)
        recovered(writer)
        for n in range(12):
            batch = rows(range(n * 50, n * 50 + 50))
            if n in {4, 8}:
                server.kill()
                with pytest.raises(RetryableError):
                    writer.write_once(batch, at(n), at(n + 1))
                server.start_again()
            once(writer, batch, at(n), at(n + 1))

        assert held() == list(range(600))
        assert open_writer().recover() == behind(batch, 49, at(11))

    @pytest.mark.parametrize("kills", [2, pytest.param(15, marks=pytest.mark.long)])
    def test_a_server_killed_while_batches_are_under_way(
        self, kills, server, url, name, open_writer, rows, held
    ):
        writer = open_writer(send_timeout_secs=2, connect_timeout_secs=2)
        recovered(writer)
        end = 2000 + kills * 3000
        batches = [rows(range(start, start + 500)) for start in range(0, end, 500)]
        writing = threading.Thread(target=lambda: [once(writer, each) for each in batches])
        writing.start()
        for n in range(kills):
            wait_until(lambda: reader.count(url, name) > 500 + n * 3000)  # noqa: B023 - used here
            server.kill()
            server.start_again()
        writing.join(120)

        assert not writing.is_alive()
        assert held() == list(range(end))

    def test_a_frozen_server_that_stores_late(self, server, open_writer, rows, held):
        writer = open_writer(send_timeout_secs=1, connect_timeout_secs=1)
        recovered(writer)
        once(writer, rows(range(10)))
        server.pause()
        batch = rows(range(10, 900))
        with pytest.raises(RetryableError):
            writer.write_once(batch, BEGIN, BEGIN)
        server.resume()

        once(writer, batch)
        once(writer, rows(range(900, 910)))

        assert held() == list(range(910))

    def test_a_connection_lost_behind_the_acknowledgement(self, open_writer, rows, held):
        """The batch is stored, and nobody could tell us: it is not written again."""
        writer = open_writer()
        writer.recover()
        batch = rows(range(300))
        once(writer, batch)
        writer.stands_at(0)
        writer.stands_at(None)

        once(writer, batch)

        assert held() == list(range(300))
