"""The NATS sink and a stream with three replicas, whose leaders are killed in turn."""

import random
import threading
import time

import pytest

from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.sinks.nats import NatsSink
from airflow_provider_deltaforge.sinks.position_contract import SinkPosition
from airflow_provider_deltaforge.testing.sinks import messages, value
from tests.servers import nats
from tests.servers.process import free_port
from tests.sinks import nats_reader as reader
from tests.waiting import wait_until

BATCH, BATCHES, KEYS = 500, 100, 37
BEGIN = SinkPosition({"gtid": "a:1"})


class Cluster:
    """Three servers, and a stream on all of them."""

    def __init__(self, directory):
        routes = [free_port() for _ in range(3)]
        listed = ", ".join(f'"nats://127.0.0.1:{route}"' for route in routes)
        self.servers = [
            nats.start(
                directory / f"n{number}",
                settings=f"server_name: n{number}\n"
                f'cluster {{ name: c, listen: "127.0.0.1:{route}", routes: [{listed}] }}',
            )
            for number, route in enumerate(routes)
        ]
        self.ask(lambda url: reader.add_stream(url, "C", "c.>", num_replicas=3) or True)

    @property
    def url(self):
        return ",".join(server.dsn() for server in self.servers)

    def ask(self, question):
        """Return the first answer that any of the servers gives."""
        answers = []

        def answered():
            for server in self.servers:
                try:
                    answers.append(question(server.dsn()))
                except Exception:  # noqa: BLE001 - another one, or later
                    continue
                return True
            return False

        wait_until(answered)
        return answers[0]

    def replace_leader(self):
        """Kill the stream's leader, or end it, and start it again a little later."""

        async def find(_, jetstream):
            return (await jetstream.stream_info("C")).cluster.leader

        leader = self.ask(lambda url: reader.asked(url, find))
        server = self.servers[int(leader[1:])] if leader else random.choice(self.servers)
        random.choice([server.kill, server.stop])()
        time.sleep(random.uniform(0, 1.5))
        server.start_again()

    def close(self):
        for server in self.servers:
            server.stop()


@pytest.fixture
def cluster(tmp_path):
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.close()


@pytest.mark.long
@pytest.mark.parametrize("once", [False, True])
def test_leaders_that_come_and_go_lose_and_reorder_nothing(once, cluster):
    writer = NatsSink(
        url=cluster.url,
        subject="c.rows",
        stream="C",
        exactly_once=once,
        send_timeout_secs=2,
        connect_timeout_secs=3,
    ).open("p")

    def retry_until_done(call):
        def done():
            try:
                call()
            except RetryableError:
                return False
            return True

        wait_until(done)

    def carry():
        if once:
            retry_until_done(writer.recover)
        for start in range(0, BATCH * BATCHES, BATCH):
            span = range(start, start + BATCH)
            batch = messages([("c.rows", b"%d" % (n % KEYS), value(n)) for n in span])
            retry_until_done(
                (lambda: writer.write_once(batch, BEGIN, BEGIN))  # noqa: B023 - used at once
                if once
                else (lambda: writer.write(batch))  # noqa: B023
            )

    carrying = threading.Thread(target=carry)
    carrying.start()
    while carrying.is_alive():
        time.sleep(random.uniform(1, 2))
        cluster.replace_leader()
    writer.close()

    found = cluster.ask(lambda url: reader.numbers(reader.values(url, "C")))
    if once:
        assert found == list(range(BATCH * BATCHES))
    assert sorted(set(found)) == list(range(BATCH * BATCHES))
    for key in range(KEYS):
        mine = [n for n in found if n % KEYS == key]
        assert list(dict.fromkeys(mine)) == sorted(set(mine))
        assert mine[-1] == max(mine)
