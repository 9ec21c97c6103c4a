"""A TCP proxy of our own: it falls silent, makes a network slow, or keeps bytes for later."""

import contextlib
import socket
import threading
import time

from tests.servers.process import HOST

_PIECE = 1 << 14


class _Connection:
    """One client and, once something passes, its connection to the server."""

    def __init__(self, client: socket.socket) -> None:
        self.client = client
        self.server: socket.socket | None = None
        self.passing = threading.Event()
        self.is_held = False
        """Something that the client has sent is not passed on."""
        self.answered = 0
        """Bytes that the server has sent and that were passed on."""

    def cut_off(self) -> None:
        """End it for the client; what that has sent goes on to the server."""
        with contextlib.suppress(OSError):
            self.client.shutdown(socket.SHUT_WR)


class Proxy:
    """Listens on a port of its own and passes everything on to another one.

    Args:
        target: the port of the real server.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._is_silent = False
        self.delay_s = 0.0
        """Before each piece of up to 16 KiB is passed on, in both directions."""
        self._lock = threading.Lock()
        self._connections: list[_Connection] = []
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def silence(self) -> None:
        """Pass nothing on any more; connections stay open, and new ones are accepted."""
        with self._lock:
            self._is_silent = True
            for each in self._connections:
                each.passing.clear()

    def heal(self) -> None:
        """Pass on again, what was held first."""
        with self._lock:
            self._is_silent = False
            for each in self._connections:
                each.passing.set()

    def heal_new(self) -> None:
        """Pass on what new connections send; older ones stay silent, with what they hold."""
        with self._lock:
            self._is_silent = False

    def cut_off(self) -> None:
        """End every connection for its client, and keep what it has sent."""
        for each in self.silent:
            each.cut_off()

    @property
    def silent(self) -> list[_Connection]:
        """Connections that nothing is passed on from."""
        with self._lock:
            return [each for each in self._connections if not each.passing.is_set()]

    def close(self) -> None:
        """End every connection."""
        self.heal()
        sides = [side for each in self._connections for side in (each.client, each.server)]
        for each in [self._listener, *filter(None, sides)]:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._join, args=(client,), daemon=True).start()

    def _join(self, client: socket.socket) -> None:
        connection = _Connection(client)
        with self._lock:
            if not self._is_silent:
                connection.passing.set()
            self._connections.append(connection)
        connection.passing.wait()
        try:
            server = socket.create_connection((HOST, self._target), timeout=10)
        except OSError:
            client.close()
            return
        server.settimeout(None)
        connection.server = server
        threading.Thread(target=self._ask, args=(connection, server), daemon=True).start()
        threading.Thread(target=self._answer, args=(connection, server), daemon=True).start()

    def _ask(self, connection: _Connection, server: socket.socket) -> None:
        """Pass on all that the client has sent, also when it has closed by then."""
        with contextlib.suppress(OSError):
            while data := connection.client.recv(_PIECE):
                connection.is_held = True
                self._hold(connection)
                connection.is_held = False
                server.sendall(data)
        self._hold(connection)
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_WR)

    def _answer(self, connection: _Connection, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(_PIECE):
                self._hold(connection)
                connection.answered += len(data)
                with contextlib.suppress(OSError):
                    connection.client.sendall(data)
        self._hold(connection)
        for each in (connection.client, server):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _hold(self, connection: _Connection) -> None:
        connection.passing.wait()
        if self.delay_s:
            time.sleep(self.delay_s)
