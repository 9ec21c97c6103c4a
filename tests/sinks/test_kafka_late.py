"""What a network still holds of a batch that was given up never lands behind newer rows."""

import os
import threading
import time

import pytest

from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.sinks.kafka import KafkaSink
from airflow_provider_deltaforge.testing.sinks import messages, value
from tests.chaos.proxy import Proxy
from tests.servers import kafka
from tests.servers.process import HOST, free_port
from tests.sinks.kafka_reader import read_topic
from tests.sinks.kafka_work import create, until_written
from tests.waiting import wait_for

EXPIRY_MS = 2000
KEYS = 7
PARTITIONS = 3
TOPIC_MAX = 50_000


def key_of(n):
    return b"%d" % (n % KEYS)


class OnlyClaim:
    """A claim where nobody else has ever written."""

    token = "1"

    def confirm(self):
        pass

    def hold(self):
        pass

    def former(self):
        return []

    def outlive(self, writers):
        assert not writers

    def forget(self, writers):
        assert not writers

    def enter(self, name, lives_s=0.0):
        assert name
        assert lives_s > 0


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A broker with a second listener, whose address is that of a proxy."""
    directory = tmp_path_factory.mktemp("kafka-late")
    port, behind = free_port(), free_port()
    proxy = Proxy(behind)
    listeners = {"CLIENTS": port, "PROXIED": behind}
    advertised = f"CLIENTS://{HOST}:{port},PROXIED://{HOST}:{proxy.port}"
    listeners["CONTROLLER"] = kafka._controller_port(directory)
    settings = {
        "listeners": ",".join(f"{name}://{HOST}:{at}" for name, at in listeners.items()),
        "advertised.listeners": advertised,
        "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in listeners),
    }
    server = kafka.start(directory, port, settings=settings)
    yield server, proxy
    proxy.close()
    server.kill()


class Cut:
    """A writer whose network is cut, and comes back without what it holds."""

    def __init__(self, server):
        broker, self.proxy = server
        self.brokers = broker.dsn()
        self.topic = create(self.brokers, partitions=PARTITIONS, max_message_bytes=TOPIC_MAX)
        conf = {"message.timeout.ms": EXPIRY_MS}
        sink = KafkaSink(brokers=f"{HOST}:{self.proxy.port}", topic="t", client_conf=conf)
        self.writer = sink.open("p")
        self.writer.fence(OnlyClaim())

    def batch(self, span):
        """Return messages for all partitions."""
        return messages([(self.topic, key_of(n), value(n)) for n in span])

    def give_up(self, batch, *, is_cut_off):
        """Write until the batch is given up; what was sent of it stays in the network.

        Args:
            batch: what is written.
            is_cut_off: connections end for the client as soon as something is sent.
        """
        self.proxy.silence()
        if is_cut_off:
            threading.Thread(target=self._cut_off, daemon=True).start()
        # A writer that has still to ask for its topics cannot send anything that would be given up.
        ends = ("given up", "timed out", "not acknowledged")
        error = ""
        while not any(end in error for end in ends):
            with pytest.raises(RetryableError) as refused:
                self.writer.write(batch)
            error = str(refused.value)

    def _cut_off(self):
        wait_for("a request", lambda: any(each.is_held for each in self.proxy.silent))
        time.sleep(0.5)
        self.proxy.cut_off()

    def release(self):
        """Let all arrive that the network holds, and wait for the broker's answers to it."""
        held = [each for each in self.proxy.silent if each.is_held]
        assert held
        answered = sum(each.answered for each in held)
        self.proxy.heal()
        wait_for("an answer", lambda: sum(each.answered for each in held) > answered)
        while sum(each.answered for each in held) > answered:
            answered = sum(each.answered for each in held)
            time.sleep(0.5)

    def stored(self):
        """Return the values of each key in order."""
        stored = {}
        for each in read_topic(self.brokers, self.topic):
            stored.setdefault(each.key, []).append(each.value)
        return stored

    def close(self):
        self.proxy.heal()
        self.writer.close()


@pytest.fixture
def cut(server):
    cut = Cut(server)
    yield cut
    cut.close()


def last_values(span):
    """Return what each key holds once all of it was written in order."""
    return {key_of(n): value(n) for n in span}


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "first"])
@pytest.mark.parametrize("is_cut_off", [False, True], ids=["silent", "cut-off"])
def test_a_batch_that_was_given_up_never_lands_behind_newer_rows(cut, is_known, is_cut_off):
    # Of partitions that this producer has never written to, a broker remembers nothing.
    until_written(cut.writer, cut.batch(range(100) if is_known else [0]))
    old, newer = cut.batch(range(100, 200)), cut.batch(range(200, 300))
    cut.give_up(old, is_cut_off=is_cut_off)
    cut.proxy.heal_new()
    until_written(cut.writer, old)
    until_written(cut.writer, newer)
    before = cut.stored()

    cut.release()

    after = cut.stored()
    assert {key: values[-1] for key, values in after.items()} == last_values(range(200, 300))
    assert after == before


def test_nor_does_what_was_given_up_several_times(cut):
    until_written(cut.writer, cut.batch(range(100)))
    old = cut.batch(range(100, 200))
    for is_cut_off in (True, False, True):
        cut.give_up(old, is_cut_off=is_cut_off)
        cut.proxy.heal_new()
    # Another batch than the one that was given up, as from a lane that reads again.
    until_written(cut.writer, cut.batch(range(150, 300)))

    cut.release()

    stored = cut.stored()
    assert {key: values[-1] for key, values in stored.items()} == last_values(range(200, 300))


def test_a_message_that_is_refused_behind_an_outage_is_found_in_order(cut):
    until_written(cut.writer, cut.batch(range(100)))
    cut.give_up(cut.batch(range(100, 200)), is_cut_off=False)
    cut.proxy.heal_new()
    sent = [(cut.topic, key_of(n), value(n)) for n in range(100, 200)]
    sent[40] = (cut.topic, key_of(140), os.urandom(TOPIC_MAX))

    refused = until_written(cut.writer, messages(sent))
    until_written(cut.writer, cut.batch(range(200, 300)))
    cut.release()

    assert [(each.event_row, each.kind) for each in refused] == [(40, "message_too_large")]
    stored = cut.stored()
    assert {key: values[-1] for key, values in stored.items()} == last_values(range(200, 300))
    assert value(140) not in stored[key_of(140)]


def test_a_batch_that_a_slow_network_does_not_carry_in_time_goes_in_parts(cut):
    limited, cut.topic = cut.topic, create(cut.brokers, partitions=PARTITIONS)
    until_written(cut.writer, cut.batch(range(10)))
    rows = [(key_of(n), b"%d " % n + os.urandom(2000).hex().encode()) for n in range(300)]
    cut.proxy.delay_s = 0.05  # For 16 KiB: the batch needs twice the time that it has.
    try:
        until_written(cut.writer, messages([(cut.topic, *row) for row in rows]))
    finally:
        cut.proxy.delay_s = 0.0
    until_written(cut.writer, cut.batch(range(300, 400)))

    stored = cut.stored()
    for key in map(key_of, range(KEYS)):
        large = [value for value in stored[key] if len(value) > 4000]
        assert list(dict.fromkeys(large)) == [text for its_key, text in rows if its_key == key]
    assert {key: values[-1] for key, values in stored.items()} == last_values(range(300, 400))

    # What was answered in parts is not sent again when a later part has to go message by message.
    cut.topic = limited
    sent = [(limited, key_of(n), value(n)) for n in range(3000)]
    sent[2900] = (limited, key_of(2900), os.urandom(TOPIC_MAX))
    refused = until_written(cut.writer, messages(sent))
    assert [(each.event_row, each.kind) for each in refused] == [(2900, "message_too_large")]
    stored = cut.stored()
    assert {key: values[-1] for key, values in stored.items()} == last_values(range(3000))
    assert value(2900) not in stored[key_of(2900)]
    assert stored[key_of(0)].count(value(0)) == 1
