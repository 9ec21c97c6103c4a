"""A webhook endpoint on real sockets that answers, or fails, as a test says."""

import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from airflow_provider_deltaforge.testing.sinks import messages, value
from tests.servers.process import free_port
from tests.sinks.certificates import Certified

Act = Callable[["_Handler"], None]
"""Answers one request in its own way; to be found in ``Endpoint.acts``."""


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    connection: tuple[str, int]


@dataclass
class Endpoint:
    """Answers 204 to everything, unless there is an act for a request.

    Attributes:
        acts: how the next requests are answered, one each.
        judge: asked for a status, or an act, once those are used up.
        requests: everything that came in whole, whatever was answered.
        taken: the ones that were answered with success.
        bytes_max: larger requests are not even read.
        is_rude: nor are they answered.
        tunnels: where to, and by whom, tunnels through it were asked for.
    """

    tls: Certified | None = None
    clients: Certified | None = None
    acts: list[Act | int] = field(default_factory=list)
    judge: Callable[[Request], Act | int] = lambda _: 204
    requests: list[Request] = field(default_factory=list)
    taken: list[Request] = field(default_factory=list)
    tunnels: list[tuple[str, str | None]] = field(default_factory=list)
    bytes_max: int | None = None
    is_rude: bool = False
    port: int = 0

    def __post_init__(self):
        self.start()

    def start(self):
        """Listen, on the port of the last time if there was one."""
        # One that the system chooses could be taken by an outgoing connection while it is away.
        self.port = self.port or free_port()
        self._server = _Server(("127.0.0.1", self.port), self)
        if self.tls is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(self.tls.certificate, self.tls.key)
            if self.clients is not None:
                context.verify_mode = ssl.CERT_REQUIRED
                context.load_verify_locations(self.clients.certificate)
            listening = self._server.socket
            self._server.socket = context.wrap_socket(
                listening, server_side=True, do_handshake_on_connect=False
            )
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self):
        """Stop listening, and hang up."""
        self._server.shutdown()
        self._server.server_close()
        self._server.hang_up()

    @property
    def url(self):
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def connections(self):
        return list(dict.fromkeys(each.connection for each in self.requests))

    def values(self):
        """Return what was taken, with arrays taken apart."""
        bodies = [each.body for each in self.taken]
        return [part for body in bodies for part in _parts(body)]


def _parts(body):
    if not body.startswith(b"["):
        return [body]
    return [
        json.dumps(each, separators=(",", ":"), ensure_ascii=False).encode()
        for each in json.loads(body)
    ]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(self, place, endpoint):
        self.endpoint = endpoint
        self._open = set()
        super().__init__(place, _Handler)

    def process_request(self, request, client_address):
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request):
        self._open.discard(request)
        super().shutdown_request(request)

    def hang_up(self):
        for each in list(self._open):
            hang_up(each)

    def handle_error(self, request, client_address):
        """A client that goes away is part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self):
        endpoint = self.server.endpoint
        if endpoint.bytes_max and int(self.headers["Content-Length"]) > endpoint.bytes_max:
            self.close_connection = True
            if endpoint.is_rude:
                at_once = struct.pack("ii", 1, 0)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
                self.connection.close()
            else:
                self.answer(413)
            return
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.command, self.path, headers, body, self.client_address)
        endpoint.requests.append(request)
        act = endpoint.acts.pop(0) if endpoint.acts else endpoint.judge(request)
        if callable(act):
            act(self)
            return
        if act < 300:
            endpoint.taken.append(request)
        self.answer(act)

    def do_PUT(self):
        self.do_POST()

    def do_CONNECT(self):
        """Be a proxy: a tunnel to where the client wants."""
        self.close_connection = True
        tunnels = self.server.endpoint.tunnels
        tunnels.append((self.path, self.headers.get("Proxy-Authorization")))
        if self.server.endpoint.acts:
            self.answer(self.server.endpoint.acts.pop(0))
            return
        host, _, port = self.path.rpartition(":")
        with socket.create_connection((host, int(port))) as there:
            self.send_response(200)
            self.end_headers()
            back = threading.Thread(target=_pour, args=(there, self.connection), daemon=True)
            back.start()
            _pour(self.connection, there)
            back.join()

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name.replace("_", "-"), text)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def _pour(one, other):
    with suppress(OSError):
        while part := one.recv(65_536):
            other.sendall(part)
    hang_up(other)


def hang_up(connection):
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def hangs_up(handler):
    """End the connection instead of answering."""
    handler.close_connection = True
    hang_up(handler.connection)


def takes_and_hangs_up(handler):
    """Answer with success, and close the connection without saying so."""
    endpoint = handler.server.endpoint
    endpoint.taken.append(endpoint.requests[-1])
    handler.answer(204)
    hangs_up(handler)


def breaks_off(handler):
    """End the connection in the middle of a good answer."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
    hangs_up(handler)


def drips(handler):
    """Answer a byte at a time, without end."""
    handler.close_connection = True
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    released = threading.Event()
    while not released.wait(0.05):
        handler.wfile.write(b"x")


def stays_silent(handler):
    """Answer nothing until the client goes away."""
    handler.close_connection = True
    handler.connection.recv(1)


def says(status, **headers):
    """Return an act that answers with headers."""
    return lambda handler: handler.answer(status, **headers)


def rows(endpoint, span, path="/in", headers=None):
    """Return messages with a number each."""
    return messages([(endpoint.url + path, b"k", value(n)) for n in span], headers)


def numbers(endpoint):
    """Return the numbers that were taken."""
    return [json.loads(each)["n"] for each in endpoint.values()]
