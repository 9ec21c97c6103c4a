"""An endpoint that only counts, our HTTP sink to it, and a bare client beside it.

Run as a program it is the endpoint: an own process, so that its time is not the clients'.
"""

import socket
import sys
import threading
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from airflow_provider_deltaforge.columns.binary_columns import uuid_texts
from airflow_provider_deltaforge.events.message import Messages
from airflow_provider_deltaforge.sinks.contract import Sink
from tests.servers.process import HOST, Server, answers, free_port

_ROOT = Path(__file__).resolve().parents[1]
_EVENT = b'"op":"c"'
Send = Callable[[Sequence[Messages]], None]


def start(directory: Path) -> Server:
    """Start the endpoint."""
    directory.mkdir(parents=True, exist_ok=True)
    port = free_port()
    return Server(
        name="endpoint",
        directory=directory,
        port=port,
        command=[sys.executable, "-m", "benchmarks.webhooks", str(port)],
        probe=lambda server: answers(server.port),
        url=f"http://{HOST}:{port}",
        env={"PYTHONPATH": str(_ROOT)},
    ).launch()


def sink(server: Server) -> Sink:
    """Return our sink, with a request per event."""
    from airflow_provider_deltaforge.sinks.http import HttpSink

    return HttpSink(id="bench", url=server.dsn())


def array_sink(server: Server) -> Sink:
    """Return our sink, with a request per batch."""
    from airflow_provider_deltaforge.sinks.http import HttpSink

    return HttpSink(id="bench", url=server.dsn(), batch_mode=True)


def bare(server: Server) -> Send:
    """Return what posts every event with the same headers as ours."""
    import httpx

    client = httpx.Client()

    def send(batches: Sequence[Messages]) -> None:
        for batch in batches:
            names = uuid_texts(batch.event_ids).to_pylist()
            columns = (batch.values.to_pylist(), batch.keys.to_pylist(), names)
            for value, key, name in zip(*columns, strict=True):
                headers = {
                    "Content-Type": "application/json",
                    "df-key": key.decode(),
                    "df-event-id": name.decode(),
                    "Idempotency-Key": name.decode(),
                }
                client.post(server.dsn(), content=value, headers=headers).raise_for_status()

    return send


def bare_arrays(server: Server) -> Send:
    """Return what posts every batch as an array."""
    import httpx

    client = httpx.Client()

    def send(batches: Sequence[Messages]) -> None:
        for batch in batches:
            body = b"[%b]" % b",".join(batch.values.to_pylist())
            headers = {"Content-Type": "application/json"}
            client.post(server.dsn(), content=body, headers=headers).raise_for_status()

    return send


def placed(server: Server, batch: Messages) -> Messages:
    """Return a batch that goes to the endpoint."""
    return replace(batch, topics=pa.repeat(pa.scalar(server.dsn()), len(batch)).dictionary_encode())


def held(server: Server) -> int:
    """Return how many events came in, and forget them."""
    with urllib.request.urlopen(server.dsn(), data=b"", timeout=60) as answer:
        return int(answer.read())


class _Counter:
    """Answers a request without a body with the count so far."""

    def __init__(self) -> None:
        self._count = 0

    def serve(self, port: int) -> None:
        with socket.create_server((HOST, port)) as listening:
            while True:
                connection, _ = listening.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        rest = bytearray()
        while True:
            while (end := rest.find(b"\r\n\r\n")) < 0:
                more = connection.recv(1 << 18)
                if not more:
                    return
                rest += more
            head = bytes(rest[:end]).lower()
            size = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
            stop = end + 4 + size
            while len(rest) < stop:
                rest += connection.recv(1 << 18)
            answer = self._note(bytes(rest[end + 4 : stop]))
            del rest[:stop]
            connection.sendall(
                b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(answer), answer)
            )

    def _note(self, body: bytes) -> bytes:
        if body:
            self._count += body.count(_EVENT)
            return b"ok"
        count, self._count = self._count, 0
        return b"%d" % count


if __name__ == "__main__":
    _Counter().serve(int(sys.argv[1]))
