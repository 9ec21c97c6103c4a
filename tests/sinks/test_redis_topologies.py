"""Redis behind sentinels, and Redis as a cluster."""

import subprocess
import time
import uuid

import pytest
import redis
from redis.crc import key_slot

from airflow_provider_deltaforge.engine.deliver.sink_fences import SinkFences
from airflow_provider_deltaforge.errors import AccessError, FatalError, FencedError, RetryableError
from airflow_provider_deltaforge.sinks.position_contract import SinkPosition
from airflow_provider_deltaforge.sinks.redis import RedisSink
from airflow_provider_deltaforge.testing.sinks import messages, value
from tests.engine.in_process import InProcess
from tests.servers import redis as servers
from tests.servers.process import HOST, free_port
from tests.waiting import wait_for

PASSWORD = "redis-s3cret"
SENTINEL_PASSWORD = "sentinel-s3cret"


def client(server, **settings):
    return redis.Redis(host=server.host, port=server.port, **settings)


def rows(stream, span, key=b"same"):
    return messages([(stream, key, value(n)) for n in span])


def values(server, stream, **settings):
    return [fields[b"event"] for _, fields in client(server, **settings).xrange(stream)]


def numbers(span):
    return [value(n) for n in span]


def retry_until_done(call, *patient, within_s=120):
    """Call until none of the errors is raised that the engine would wait for."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            return call()
        except (RetryableError, *patient):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


@pytest.fixture
def stream():
    return f"orders-{uuid.uuid4().hex[:8]}"


class Watched:
    """A master, its replica, and the sentinel that replaces the one by the other."""

    def __init__(self, directory):
        login = {"requirepass": PASSWORD, "masterauth": PASSWORD}
        self.master = servers.start(directory / "master", settings=login)
        follow = {**login, "replicaof": f"{HOST} {self.master.port}"}
        self.replica = servers.start(directory / "replica", settings=follow)
        settings = f"sentinel auth-pass mymaster {PASSWORD}\nrequirepass {SENTINEL_PASSWORD}"
        self.sentinel = servers.start_sentinel(directory / "sentinel", self.master, settings)
        ask = client(self.sentinel, password=SENTINEL_PASSWORD)
        wait_for("a sentinel that knows the replica", lambda: ask.sentinel_slaves("mymaster"))
        follower = client(self.replica, password=PASSWORD)
        wait_for(
            "a replica that follows",
            lambda: follower.info("replication")["master_link_status"] == "up",
        )

    def uri(self, sentinel_password=SENTINEL_PASSWORD):
        place = self.sentinel.dsn().replace("://", f"://:{PASSWORD}@")
        return f"{place}?sentinel_password={sentinel_password}"

    def stop(self):
        for server in (self.sentinel, self.replica, self.master):
            server.stop()


@pytest.mark.long
class TestSentinel:
    @pytest.fixture
    def watched(self, tmp_path):
        watched = Watched(tmp_path)
        yield watched
        watched.stop()

    def test_entries_follow_the_master(self, watched, stream):
        writer = RedisSink(id="r", uri=watched.uri(), stream="s").open("p")
        assert list(writer.write(rows(stream, range(100)))) == []
        wait_for(
            "the replica to hold them",
            lambda: len(values(watched.replica, stream, password=PASSWORD)) == 100,
        )
        watched.master.kill()
        with pytest.raises(RetryableError):
            writer.write(rows(stream, range(100, 200)))

        retry_until_done(lambda: writer.write(rows(stream, range(100, 200))))
        writer.write(rows(stream, range(200, 300)))
        writer.close()

        found = values(watched.replica, stream, password=PASSWORD)
        assert list(dict.fromkeys(found)) == numbers(range(300))

    def test_a_master_that_stands_still_is_left_once_it_is_replaced(self, watched, stream):
        writer = RedisSink(id="r", uri=watched.uri(), stream="s", send_timeout_secs=1).open("p")
        writer.write(rows(stream, range(100)))
        watched.master.pause()
        with pytest.raises(RetryableError, match="no answer"):
            writer.write(rows(stream, range(100, 200)))

        retry_until_done(lambda: writer.write(rows(stream, range(100, 200))))
        writer.write(rows(stream, range(200, 300)))
        watched.master.resume()
        old = client(watched.master, password=PASSWORD)
        wait_for("the old master to follow", lambda: old.info("replication")["role"] == "slave")
        writer.write(rows(stream, range(300, 400)))
        writer.close()

        assert values(watched.replica, stream, password=PASSWORD) == numbers(range(400))

    def test_exactly_once_survives_the_failover(self, watched, stream):
        sink = RedisSink(id="r", uri=watched.uri(), stream="s", exactly_once=True)
        writer = sink.open("p")
        held = {"at": writer.recover()}

        def write(n):
            """Do what the engine does: begin where the sink says it is."""
            while (start := held["at"].position["n"] if held["at"] else 0) < n:
                batch = rows(stream, range(start * 10, start * 10 + 10))
                try:
                    writer.write_once(
                        batch, SinkPosition({"n": start}), SinkPosition({"n": start + 1})
                    )
                    held["at"] = SinkPosition({"n": start + 1})
                except FencedError:
                    held["at"] = writer.recover()

        for n in range(1, 31):
            if n == 15:
                watched.master.kill()
            retry_until_done(lambda n=n: write(n))
        writer.close()

        # What the replica had not got when the master died was written again: none is twice.
        assert values(watched.replica, stream, password=PASSWORD) == numbers(range(300))

    def test_a_wrong_password_of_the_sentinel_fails_at_once(self, watched):
        with pytest.raises(AccessError) as caught:
            RedisSink(id="r", uri=watched.uri("wr0ng"), stream="s").open("p")

        assert "wr0ng" not in str(caught.value)
        assert PASSWORD not in str(caught.value)


def right(pipeline):
    """Return the claim of a driver that begins now."""
    return SinkFences(pipeline.context()).of("r", lambda: True)


def slot_of(name):
    return key_slot(name.encode())


class Cluster:
    """Three masters that share the slots."""

    def __init__(self, directory):
        self.nodes = [self.start(directory / str(number)) for number in range(3)]
        hosts = [f"{HOST}:{node.port}" for node in self.nodes]
        join = ["redis-cli", "--cluster", "create", *hosts, "--cluster-yes"]
        subprocess.run(join, check=True, capture_output=True)
        wait_for("the cluster", lambda: all(map(self.is_whole, self.nodes)))
        self.uri = f"redis+cluster://{','.join(hosts)}"

    def start(self, place):
        settings = {"cluster-enabled": "yes", "cluster-node-timeout": "2000"}
        settings |= {"cluster-require-full-coverage": "no"}
        return servers.start(place, settings=settings | {"cluster-port": str(free_port())})

    def is_whole(self, node):
        return client(node).execute_command("CLUSTER INFO")["cluster_state"] == "ok"

    def node_of(self, stream):
        for node in self.nodes:
            for first, last, place, *_ in client(self.nodes[-1]).execute_command(
                "CLUSTER", "SLOTS"
            ):
                if first <= key_slot(stream.encode()) <= last and place[1] == node.port:
                    return node
        raise AssertionError(stream)

    def values(self, stream):
        return values(self.node_of(stream), stream)

    def stop(self):
        for node in self.nodes:
            node.stop()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    cluster = Cluster(tmp_path_factory.mktemp("redis-cluster"))
    yield cluster
    cluster.stop()


@pytest.mark.long
class TestCluster:
    @pytest.fixture
    def open_writer(self, cluster):
        opened = []

        def do_open(**settings):
            stream = settings.pop("stream", "s:${source.table}")
            opened.append(RedisSink(id="r", uri=cluster.uri, stream=stream, **settings).open("p"))
            return opened[-1]

        yield do_open
        for writer in opened:
            writer.close()

    def test_every_stream_finds_its_node_and_keeps_its_order(self, cluster, stream, open_writer):
        writer = open_writer()
        names = [f"{stream}:{n}" for n in range(20)]
        assert len({cluster.node_of(name).port for name in names}) == 3

        for start in range(0, 3000, 1000):
            given = [(names[n % 20], b"k", value(n)) for n in range(start, start + 1000)]
            assert list(writer.write(messages(given))) == []

        for at, name in enumerate(names):
            assert cluster.values(name) == numbers(range(at, 3000, 20))

    def test_a_slot_that_moves_is_followed(self, cluster, stream, open_writer):
        writer = open_writer()
        writer.write(rows(stream, range(10)))
        source = cluster.node_of(stream)
        target = next(node for node in cluster.nodes if node is not source)
        slot = key_slot(stream.encode())
        ids = {
            node.port: client(node).execute_command("CLUSTER MYID").decode()
            for node in cluster.nodes
        }
        set_slot = ("CLUSTER", "SETSLOT", slot)
        client(target).execute_command(*set_slot, "IMPORTING", ids[source.port])
        client(source).execute_command(*set_slot, "MIGRATING", ids[target.port])
        client(source).execute_command("MIGRATE", HOST, target.port, stream, 0, 5000)
        with pytest.raises(RetryableError, match="moved"):
            writer.write(rows(stream, range(10, 20)))  # Gone here, not yet the other's.
        for node in (target, source, *cluster.nodes):
            client(node).execute_command(*set_slot, "NODE", ids[target.port])

        retry_until_done(lambda: writer.write(rows(stream, range(10, 20))))

        assert values(target, stream) == numbers(range(20))

    def test_a_node_that_is_away_blocks_and_comes_back(self, cluster, stream, open_writer):
        writer = open_writer(connect_timeout_secs=2)
        writer.write(rows(stream, range(10)))
        node = cluster.node_of(stream)
        node.kill()
        with pytest.raises(RetryableError):
            writer.write(rows(stream, range(10, 20)))
        node.start_again()

        retry_until_done(lambda: writer.write(rows(stream, range(10, 20))))

        wait_for("the cluster", lambda: all(map(cluster.is_whole, cluster.nodes)))
        assert cluster.values(stream) == numbers(range(20))

    def test_a_cluster_is_found_again_without_the_nodes_of_the_document(self, cluster, stream):
        gone, *others = cluster.nodes
        uri = f"redis+cluster://{HOST}:{gone.port}"
        name = next(f"{stream}:{n}" for n in range(99) if cluster.node_of(f"{stream}:{n}") != gone)
        writer = RedisSink(id="r", uri=uri, stream="s", connect_timeout_secs=2).open("p")
        writer.write(rows(name, range(10)))
        gone.kill()
        try:
            for node in others:
                client(node).client_kill_filter(_type="normal")
            retry_until_done(lambda: writer.write(rows(name, range(10, 20))))
            assert cluster.values(name) == numbers(range(20))
        finally:
            writer.close()
            gone.start_again()
            wait_for("the cluster", lambda: all(map(cluster.is_whole, cluster.nodes)))

    def test_exactly_once_within_one_slot(self, cluster, stream, open_writer):
        tag = f"{{{stream}}}"
        writer = open_writer(stream=tag + ":${source.table}", exactly_once=True)
        writer.recover()
        given = [(f"{tag}:{n % 2}", b"k", value(n)) for n in range(10)]

        assert (
            list(writer.write_once(messages(given), SinkPosition({"n": 0}), SinkPosition({"n": 1})))
            == []
        )
        elsewhere = messages([*given[:1], (f"other-{stream}", b"k", value(9))])
        refused = writer.write_once(elsewhere, SinkPosition({"n": 1}), SinkPosition({"n": 2}))

        assert [(one.event_row, one.kind) for one in refused] == [(1, "routing")]
        assert "hash tag" in refused[0].reason
        assert cluster.values(f"{tag}:1") == numbers(range(1, 10, 2))
        other = open_writer(stream=tag + ":${source.table}", exactly_once=True)
        assert other.recover() == SinkPosition({"n": 1})

    def test_a_former_driver_is_refused_in_every_slot(self, cluster, stream, open_writer):
        pipeline = InProcess()
        old, new = open_writer(), open_writer()
        names = [f"{stream}:{n}" for n in range(20)]
        given = {n: messages([(name, b"k", value(n)) for name in names]) for n in range(4)}
        old.fence(right(pipeline))
        for n in (0, 1):  # Slots of one node take turns.
            assert list(old.write(given[n])) == []

        new.fence(right(pipeline))
        new.write(given[2])

        for name in names:
            with pytest.raises(FencedError):
                retry_until_done(lambda name=name: old.write(rows(name, range(3, 4))))
        assert [cluster.values(name) for name in names] == [numbers(range(3))] * len(names)
        for node in cluster.nodes:
            keys = [key.decode() for key in client(node).scan_iter("_deltaforge:fence:*p:r")]
            assert keys
            assert {key_slot(key.encode()) for key in keys} <= set(map(slot_of, names))

    def test_a_former_driver_that_delivers_exactly_once_is_refused(
        self, cluster, stream, open_writer
    ):
        pipeline = InProcess()
        settings = {"stream": f"{{{stream}}}:${{source.table}}", "exactly_once": True}
        old, new = open_writer(**settings), open_writer(**settings)
        old.fence(right(pipeline))
        old.recover()
        name = f"{{{stream}}}:a"
        old.write_once(rows(name, range(1)), SinkPosition({"n": 0}), SinkPosition({"n": 1}))
        new.fence(right(pipeline))
        assert new.recover() == SinkPosition({"n": 1})

        with pytest.raises(FencedError):
            old.write_once(rows(name, range(1, 2)), SinkPosition({"n": 1}), SinkPosition({"n": 2}))
        new.write_once(rows(name, range(2, 3)), SinkPosition({"n": 1}), SinkPosition({"n": 2}))

        assert cluster.values(name) == [value(0), value(2)]

    def test_the_documented_rights_are_enough(self, cluster, stream, open_writer):
        rules = ["on", f">{PASSWORD}", "~*", "+@connection", "+multi", "+exec", "+xadd"]
        for node in cluster.nodes:
            rule = ("ACL", "SETUSER", "df", *rules, "+cluster|slots")
            client(node).execute_command(*rule)
        writer = open_writer(username="df", password=PASSWORD)

        writer.write(rows(stream, range(3)))

        assert cluster.values(stream) == numbers(range(3))

    def test_a_cluster_behind_a_plain_uri_is_named(self, cluster, stream):
        other = next(node for node in cluster.nodes if node is not cluster.node_of(stream))
        writer = RedisSink(id="r", uri=other.dsn("0"), stream="s").open("p")

        with pytest.raises(FatalError, match=r"redis\+cluster://"):
            writer.write(rows(stream, range(1)))
        writer.close()


def test_one_server_behind_the_uri_of_a_cluster_is_named(redis_server):
    uri = redis_server.dsn("0").replace("redis://", "redis+cluster://")

    with pytest.raises(FatalError, match="no cluster"):
        RedisSink(id="r", uri=uri, stream="s").open("p")
