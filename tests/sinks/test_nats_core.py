"""The NATS sink without a stream in the document: subscribers, or a stream that takes it."""

import asyncio
import threading
import time
import uuid

import pytest

from airflow_provider_deltaforge.errors import FatalError, RetryableError
from airflow_provider_deltaforge.sinks.nats import NatsSink
from airflow_provider_deltaforge.testing.sinks import messages, value
from tests.sinks import nats_reader as reader
from tests.waiting import PATIENCE_S, wait_until


@pytest.fixture
def url(nats_server):
    return nats_server.dsn()


@pytest.fixture
def name(url):
    """The name of a stream that is not there yet."""
    name = f"S{uuid.uuid4().hex[:8]}"
    yield name
    reader.remove_stream(url, name)


@pytest.fixture
def open_writer(url):
    writers = []

    def do_open(**settings):
        writers.append(NatsSink(url=url, **settings).open("p"))
        return writers[-1]

    yield do_open
    for writer in writers:
        writer.close()


def rows(place, span, key=b"k"):
    return messages([(place, key, value(n)) for n in span])


class Listener:
    """A subscriber of core NATS in a thread of its own."""

    def __init__(self, url, subject):
        self.found, self._ready, self._end = [], threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, args=(url, subject), daemon=True)
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)

    def _run(self, url, subject):
        async def listen(client, _):
            async def take(message):
                self.found.append((message.data, dict(message.headers)))

            await client.subscribe(subject, cb=take)
            await client.flush()
            self._ready.set()
            while not self._end.is_set():
                await asyncio.sleep(0.02)

        reader.asked(url, listen)

    def close(self):
        self._end.set()
        self._thread.join(10)


def test_subscribers_get_messages_in_order(url, open_writer):
    listener = Listener(url, "core.>")
    writer = open_writer(subject="core.orders")

    for start in (0, 300):
        assert list(writer.write(rows("core.orders", range(start, start + 300), b"same"))) == []

    wait_until(lambda: len(listener.found) == 600)
    listener.close()
    assert [data for data, _ in listener.found] == [value(n) for n in range(600)]
    assert listener.found[0][1]["df-key"] == "same"


@pytest.mark.parametrize("rest", [".orders", ".*", ".>"])
def test_a_stream_that_is_made_later_stores_or_refuses_what_follows(rest, url, name, open_writer):
    listener = Listener(url, f"{name}.>")
    places = [f"{name}.{each}" for each in ("orders", "items", "orders.eu")]
    batches = [
        messages([(place, b"k", data) for place in places for data in (value(n), b"x" * 5000)])
        for n in range(2)
    ]
    writer = open_writer(subject=places[0])
    assert list(writer.write(batches[0])) == []
    reader.add_stream(url, name, f"{name}{rest}", max_msg_size=400)

    rejections = writer.write(batches[1])

    listener.close()
    count = {".orders": 1, ".*": 2, ".>": 3}[rest]
    refused = [(each.event_row, each.kind) for each in rejections]
    assert refused == [(row, "message_too_large") for row in (1, 3, 5)[:count]]
    assert reader.values(url, name) == count * [value(1)]


def test_a_stream_that_is_removed_is_waited_for(url, name, open_writer):
    place = f"{name}.orders"
    reader.add_stream(url, name, place)
    listener = Listener(url, f"{name}.>")
    writer = open_writer(subject=place, send_timeout_secs=1)
    writer.write(rows(place, range(1)))
    reader.remove_stream(url, name)
    with pytest.raises(RetryableError, match="acknowledges nothing"):
        writer.write(rows(place, range(1, 5)))
    for _ in range(2):
        with pytest.raises(RetryableError, match=f"stream '{name}', which took '{place}'"):
            writer.write(rows(place, range(1, 5)))
    reader.add_stream(url, name, place)

    writer.write(rows(place, range(1, 5)))

    listener.close()
    assert reader.values(url, name) == [value(n) for n in range(1, 5)]


def test_a_stream_that_acknowledges_nothing_is_one_more_subscriber(url, name, open_writer):
    place = f"{name}.orders"
    reader.add_stream(url, name, place, no_ack=True)
    writer = open_writer(subject=place)

    for n in range(2):
        assert list(writer.write(rows(place, [n]))) == []

    wait_until(lambda: reader.values(url, name) == [value(0), value(1)])


def test_nobody_is_waited_for_anew_after_something_else(url, name, open_writer):
    writer = open_writer(subject="${source.table}", send_timeout_secs=1)
    stored, silent = f"{name}.orders", f"silent-{name}"
    with pytest.raises(RetryableError, match="nobody listens"):
        writer.write(messages([(stored, b"k", value(1))]))
    since = time.monotonic()
    reader.add_stream(url, name, stored)
    wait_until(lambda: list(writer.write(messages([(stored, b"k", value(2))]))) == [])
    wait_until(lambda: time.monotonic() > since + 1.5)
    with pytest.raises(RetryableError, match="nobody listens"):
        writer.write(messages([(silent, b"k", value(3))]))


def test_it_fails_when_nobody_listens(open_writer):
    writer = open_writer(subject="silent.orders", send_timeout_secs=3)
    batch = rows("silent.orders", range(3))
    with pytest.raises(RetryableError, match=r"nobody listens on 'silent\.orders'"):
        writer.write(batch)

    def failed():
        try:
            writer.write(batch)
        except RetryableError:
            return False
        except FatalError as error:
            return "no responders" in str(error)

    wait_until(failed)
