"""Slow and greedy clients, with real sockets: none of them keeps others from being answered."""

import socket
import threading
import time
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

import httpx
import pytest
from fastapi import FastAPI, Request

from airflow_provider_deltaforge.api.connection_limits import HttpLimits
from airflow_provider_deltaforge.api.server import serving

HEAD = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n"
LIMITS = HttpLimits(head_s=1.0, body_s=1.0, answer_s=1.0, head_bytes=2000, connections=8)
PATIENCE_S = 30.0
"""Longer than any limit here, and than a busy machine needs."""


@contextmanager
def server(limits):
    """Serve three answers: one soon, one that is long, and one that comes too late."""
    app = FastAPI()
    over = threading.Event()

    @app.post("/echo")
    async def echo(request: Request):
        return len(await request.body())

    @app.get("/long")
    def answer_long():
        return "x" * 20_000_000

    @app.get("/late")
    def answer_late():
        over.wait(2 * PATIENCE_S)

    with serving(app, "127.0.0.1:0", limits) as address:
        try:
            yield address
        finally:
            over.set()


@pytest.fixture(scope="module")
def url():
    with server(LIMITS) as address:
        yield address


@pytest.fixture
def connect():
    """Opens connections, and closes them afterwards."""
    with ExitStack() as opened:

        def connect(url, sent=b""):
            place = ("127.0.0.1", int(url.rpartition(":")[2]))
            connection = opened.enter_context(closing(socket.create_connection(place, PATIENCE_S)))
            connection.settimeout(PATIENCE_S)
            connection.sendall(sent)
            return connection

        yield connect


def until_closed(connection):
    """Return what comes until the server closes the connection.

    Raises:
        TimeoutError: it does not.
    """
    received = b""
    try:
        while part := connection.recv(1 << 16):
            received += part
    except ConnectionResetError:
        pass
    return received


def echoed(url):
    return httpx.post(f"{url}/echo", content=b"0123456789", timeout=PATIENCE_S).json()


@pytest.mark.parametrize("sent", [b"", b"PO", HEAD, HEAD + b"\r\n123"])
def test_a_request_that_does_not_arrive_in_time_is_cut(url, connect, sent):
    begun = time.monotonic()
    assert until_closed(connect(url, sent)) == b""
    assert time.monotonic() - begun > 0.5
    assert echoed(url) == 10


def test_bytes_that_trickle_in_give_no_further_time(url, connect):
    connection, begun = connect(url, HEAD), time.monotonic()

    def trickle():
        """Send headers, not too many of them, until the server has closed the connection."""
        while time.monotonic() - begun < PATIENCE_S:
            connection.sendall(b"X: y\r\n")
            time.sleep(0.2)

    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        trickle()


def test_an_answer_that_is_not_done_or_not_read_in_time_is_cut(url, connect):
    assert until_closed(connect(url, b"GET /late HTTP/1.1\r\nHost: x\r\n\r\n")) == b""
    connection = connect(url, b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n")
    time.sleep(2.5)
    assert len(until_closed(connection)) < 20_000_000


def test_connections_that_only_wait_push_each_other_out(connect):
    with server(replace(LIMITS, head_s=2 * PATIENCE_S)) as url:
        held = [connect(url, HEAD) for _ in range(40)]
        assert echoed(url) == 10
        assert until_closed(held[0]) == b""


def test_a_connection_serves_several_requests_and_idles_between_them(url):
    with httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
        for _ in range(3):
            assert client.post("/echo", content=b"0123").json() == 4
            time.sleep(0.2)
        time.sleep(1.5)
        assert client.post("/echo", content=b"0123").json() == 4


def test_headers_that_are_too_long_are_refused(url, connect):
    received = until_closed(connect(url, HEAD + b"X: " + b"y" * 3000))
    assert received.startswith(b"HTTP/1.1 400 ")
