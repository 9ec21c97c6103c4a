"""Slow and greedy clients, with real sockets: none of them keeps others from being answered."""

import socket
import time
from contextlib import ExitStack, closing, suppress

import httpx
import pytest
from fastapi import FastAPI, Request

from airflow_provider_deltaforge.api.connection_limits import HttpLimits
from airflow_provider_deltaforge.api.server import serving

HEAD = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n"
LIMITS = HttpLimits(head_s=0.6, body_s=0.6, answer_s=0.6, head_bytes=2000, connections=8)


@pytest.fixture(scope="module")
def url():
    app = FastAPI()

    @app.post("/echo")
    async def echo(request: Request):
        return len(await request.body())

    @app.get("/long")
    def answer_long():
        return "x" * 20_000_000

    @app.get("/slow")
    def answer_late():
        time.sleep(1.5)

    with serving(app, "127.0.0.1:0", LIMITS) as address:
        yield address


@pytest.fixture
def connect(url):
    """Opens connections, and closes them afterwards."""
    place = ("127.0.0.1", int(url.rpartition(":")[2]))
    with ExitStack() as opened:

        def connect(sent=b""):
            connection = opened.enter_context(closing(socket.create_connection(place, 5)))
            connection.settimeout(5)
            connection.sendall(sent)
            return connection

        yield connect


def until_closed(connection):
    """Return what comes until the server closes the connection, and after how long it does."""
    begun, received = time.monotonic(), b""
    try:
        while part := connection.recv(1 << 16):
            received += part
    except ConnectionResetError:
        pass
    return received, time.monotonic() - begun


def echoed(url):
    return httpx.post(f"{url}/echo", content=b"0123456789", timeout=5).json()


@pytest.mark.parametrize("sent", [b"", b"PO", HEAD, HEAD + b"\r\n123"])
def test_a_request_that_does_not_arrive_in_time_is_cut(url, connect, sent):
    received, seconds = until_closed(connect(sent))
    assert received == b""
    assert 0.3 < seconds < 3
    assert echoed(url) == 10


def test_bytes_that_trickle_in_give_no_further_time(connect):
    connection, begun = connect(HEAD), time.monotonic()
    with suppress(OSError):
        for number in range(100):
            connection.sendall(b"X-%d: y\r\n" % number)
            time.sleep(0.05)
    assert time.monotonic() - begun < 3


def test_an_answer_that_is_not_done_or_not_read_in_time_is_cut(url, connect):
    received, seconds = until_closed(connect(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"))
    assert received == b""
    assert seconds < 1.4
    connection = connect(b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n")
    time.sleep(1.5)
    assert len(until_closed(connection)[0]) < 20_000_000


def test_connections_that_only_wait_push_each_other_out(url, connect):
    held = [connect(HEAD) for _ in range(40)]
    assert echoed(url) == 10
    assert until_closed(held[0]) == (b"", pytest.approx(0, abs=0.3))


def test_a_connection_serves_several_requests_and_idles_between_them(url):
    with httpx.Client(base_url=url) as client:
        for _ in range(3):
            assert client.post("/echo", content=b"0123").json() == 4
            time.sleep(0.2)
        time.sleep(0.7)
        assert client.post("/echo", content=b"0123").json() == 4


def test_headers_that_are_too_long_are_refused(connect):
    received, _ = until_closed(connect(HEAD + b"X: " + b"y" * 3000))
    assert received.startswith(b"HTTP/1.1 400 ")
