"""Connections to the server that holds a stream: one server, a watched master, or a cluster.

And what is sent over one of them, with the answers that are still to come on it.
"""

import re
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.sinks.redis.address import Address
from airflow_provider_deltaforge.sinks.redis.sink import RedisSink

_GLANCE_S = 0.25


class Servers(Protocol):
    """Gives connections; drops them when something is wrong."""

    def slot(self, stream: str) -> int:
        """Return a number that is the same for streams which one step can write to."""

    def connection(self, stream: str) -> Any:
        """Return a live connection of the driver to the server that holds the stream."""

    def moved(self, stream: str) -> bool:
        """Return whether another server holds the stream by now than the one we are connected to.

        Raises:
            redis.RedisError, OSError: nobody who knows can be reached.
        """

    def forget(self) -> None:
        """Drop every connection, and look again where the servers are."""


def servers(sink: RedisSink, pipeline: str) -> Servers:
    """Return the servers a document names; nothing is connected yet."""
    address = sink.address()
    settings = _settings(sink, address, pipeline)
    return (
        _Cluster(address, settings)
        if address.kind == "cluster"
        else _SingleServer(address, settings)
    )


def secrets(sink: RedisSink) -> tuple[str, ...]:
    """Return what no text may hold."""
    address = sink.address()
    passwords = [sink.password, sink.key_password]
    texts = [password.get_secret_value() for password in passwords if password is not None]
    return tuple(text for text in (*texts, address.login[1], address.sentinel_login[1]) if text)


def _settings(sink: RedisSink, address: Address, pipeline: str) -> dict[str, Any]:
    """Return what every connection is made with."""
    import redis.backoff
    import redis.retry

    user, password = address.login
    if sink.password is not None:
        user, password = sink.username, sink.password.get_secret_value()
    own_name = f"deltaforge-{pipeline}-{sink.id}"
    settings: dict[str, Any] = {
        "username": user,
        "password": password,
        "socket_timeout": float(sink.send_timeout_secs),
        "socket_connect_timeout": float(sink.connect_timeout_secs),
        "socket_keepalive": True,
        "socket_keepalive_options": _vanished(),
        "client_name": sink.client_name or re.sub(r"[^!-~]", "_", own_name),
        "protocol": 2,
    }
    database = sink.database if sink.database is not None else address.database
    if address.kind != "cluster":
        settings["db"] = database or 0
        # The engine tries again, visibly; a driver that does so by itself outlasts our timeouts.
        settings["retry"] = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
    if address.tls:
        settings |= _tls(sink)
    return settings


def _vanished() -> dict[int, int]:
    """Return how the kernel finds out, within half a minute, that a host is gone without a word.

    We wait on for a late answer, which a server that stands still gives in the end.
    """
    wanted = {
        "TCP_KEEPIDLE": 15,
        "TCP_KEEPINTVL": 5,
        "TCP_KEEPCNT": 3,
        "TCP_USER_TIMEOUT": 30_000,
    }
    found = {name: getattr(socket, name, None) for name in wanted}
    return {number: wanted[name] for name, number in found.items() if number is not None}


def _tls(sink: RedisSink) -> dict[str, Any]:
    key_password = sink.key_password
    for name in ("ca_file", "cert_file", "key_file"):
        path = getattr(sink, name)
        if path is not None:
            try:
                Path(path).open("rb").close()
            except OSError as error:
                raise SpecError(f"sink {sink.id}: {name}: {error.strerror}: {path}") from error
    return {
        "ssl": True,
        "ssl_ca_certs": sink.ca_file,
        "ssl_certfile": sink.cert_file,
        "ssl_keyfile": sink.key_file or sink.cert_file,
        "ssl_password": None if key_password is None else key_password.get_secret_value(),
    }


class _SingleServer:
    """One server, or the master that sentinels name."""

    def __init__(self, address: Address, settings: dict[str, Any]) -> None:
        self._address = address
        self._client = _client(address, settings)
        self._connection: Any = None

    def slot(self, stream: str) -> int:
        """One step can write to every stream."""
        return 0

    def connection(self, stream: str) -> Any:
        if self._connection is None:
            self._connection = self._client.connection_pool.get_connection()
        else:
            self._connection.connect()  # Only if it is not; sentinels are asked anew.
        return self._connection

    def moved(self, stream: str) -> bool:
        connection = self._connection
        if self._address.kind == "sentinel":
            found = self._client.connection_pool.get_master_address()
            return bool(found != (connection.host, connection.port))
        if self._address.kind == "socket":
            return False
        [(host, port)] = self._address.hosts
        places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return connection.getpeername() not in {place[4][0] for place in places}

    def forget(self) -> None:
        if self._connection is not None:
            self._connection.disconnect()


def _client(address: Address, settings: dict[str, Any]) -> Any:
    import redis
    import redis.sentinel

    library: Any = redis
    if address.kind == "socket":
        return redis.Redis(unix_socket_path=address.path, **settings)
    if address.kind == "server":
        host, port = address.hosts[0]
        return redis.Redis(host=host, port=port, **settings)
    user, password = address.sentinel_login
    shared = {
        key: value
        for key, value in settings.items()
        if key.startswith(("socket_", "ssl")) or key in {"protocol", "retry", "client_name"}
    }
    watchers = {**shared, "username": user, "password": password}
    sentinel = library.sentinel.Sentinel(address.hosts, sentinel_kwargs=watchers, **settings)
    return sentinel.master_for(address.service)


class _Cluster:
    """The nodes of a cluster, as one of them describes it.

    The driver's map of slots is used without its client: that asks the first node for a list of all
    commands, also when just this node is away.
    """

    def __init__(self, address: Address, settings: dict[str, Any]) -> None:
        self._hosts = address.hosts
        self._known = address.hosts
        self._settings = settings
        self._nodes: Any = None
        self._connections: dict[str, Any] = {}

    def slot(self, stream: str) -> int:
        from redis.crc import key_slot

        return int(key_slot(stream.encode()))

    def connection(self, stream: str) -> Any:
        if self._nodes is None:
            self._nodes = self._looked_up()
        node = self._nodes.get_node_from_slot(self.slot(stream))
        if node.name not in self._connections:
            pool = node.redis_connection.connection_pool
            self._connections[node.name] = pool.get_connection()
        return self._connections[node.name]

    def moved(self, stream: str) -> bool:
        found = self._looked_up()
        try:
            slot = self.slot(stream)
            now = found.get_node_from_slot(slot).name
            return bool(now != self._nodes.get_node_from_slot(slot).name)
        finally:
            found.close()

    def _looked_up(self) -> Any:
        import redis.cluster

        library: Any = redis.cluster
        known = [library.ClusterNode(host, port) for host, port in self._known]
        return library.NodesManager(startup_nodes=known, **self._settings)

    def forget(self) -> None:
        nodes, self._nodes = self._nodes, None
        if nodes is not None:
            # The nodes of the document may all be gone by now, and the cluster still there.
            found = [(node.host, node.port) for node in nodes.nodes_cache.values()]
            self._known = tuple(dict.fromkeys([*self._hosts, *found]))
            for connection in self._connections.values():
                connection.disconnect()
            nodes.close()
        self._connections.clear()


class UnansweredError(Exception):
    """The server did not answer in time. The question stands, and its answer may still come."""


class RedisPipeline:
    """Sends commands and collects their answers, over several attempts if need be.

    What was sent may be carried out long after a timeout. Sent again on another connection it
    could come behind what was sent later; so the answer is waited for on this one.

    Args:
        connection: the driver's, connected.
        given_up: asked while waiting; True ends it.

    Attributes:
        stream: one that the server at the other end holds.
        watches: the key that the server watches for the next transaction, and that was ours then.
        confirmed: keys for which the state store was asked behind the first look at them here.
        is_step: whether what was sent last is a step, and not only a question.
    """

    stream = ""
    watches: str | None = None
    is_step = False

    def __init__(self, connection: Any, given_up: Callable[[], bool]) -> None:
        import redis

        self._redis: Any = redis
        self._connection = connection
        self._given_up = given_up
        self.confirmed: set[str] = set()
        self._awaited = 0
        self._answers: list[Any] = []

    @property
    def is_waiting(self) -> bool:
        """Whether an answer is still to come."""
        return self._awaited > 0

    @property
    def is_broken(self) -> bool:
        """Whether the server hung up since the last answer, as it does with idle clients.

        Only to be asked while no answer is awaited.
        """
        try:
            return bool(self._connection.can_read(0))
        except (self._redis.RedisError, OSError):
            return True

    def send(self, pieces: Sequence[Any], answers: int) -> None:
        """Send whole commands; ``answers`` is how many they have.

        Raises:
            redis.RedisError: nothing that ends with these pieces was carried out.
        """
        self._answers, self._awaited = [], answers
        try:
            self._connection.send_packed_command(pieces, check_health=False)
        except BaseException:
            self._awaited = 0
            raise

    def answers(self, deadline: float) -> list[Any]:
        """Return all answers to what was sent; errors of single commands are among them.

        Raises:
            UnansweredError: not all came until ``deadline``; ask again.
            redis.RedisError: the connection is broken, or the server takes nothing at all.
        """
        read, found = self._connection.read_response, self._answers
        while len(found) < self._awaited:
            try:
                found.append(read(timeout=_GLANCE_S, disconnect_on_error=False))
            except self._redis.TimeoutError:
                if self._given_up() or time.monotonic() >= deadline:
                    raise UnansweredError from None
            except self._redis.ResponseError as error:
                found.append(error)
            except BaseException:
                self._awaited = 0
                self._connection.disconnect()
                raise
        self._awaited, self._answers = 0, []
        return found
