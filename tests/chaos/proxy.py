"""A TCP proxy of our own: it falls silent without closing anything, or makes a network slow."""

import contextlib
import socket
import threading
import time

from tests.servers.process import HOST

_PIECE = 1 << 14


class Proxy:
    """Listens on a port of its own and passes everything on to another one.

    Args:
        target: the port of the real server.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._passing = threading.Event()
        self._passing.set()
        self.delay_s = 0.0
        """Before each piece of up to 16 KiB is passed on, in both directions."""
        self._open: list[socket.socket] = []
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def silence(self) -> None:
        """Pass nothing on any more; connections stay open, and new ones are accepted."""
        self._passing.clear()

    def heal(self) -> None:
        """Pass on again, what was held first."""
        self._passing.set()

    def close(self) -> None:
        """End every connection."""
        self._passing.set()
        for each in [self._listener, *self._open]:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._join, args=(client,), daemon=True).start()

    def _join(self, client: socket.socket) -> None:
        self._passing.wait()
        try:
            server = socket.create_connection((HOST, self._target), timeout=10)
        except OSError:
            client.close()
            return
        server.settimeout(None)
        self._open += [client, server]
        for source, target in ((client, server), (server, client)):
            threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_PIECE):
                self._passing.wait()
                if self.delay_s:
                    time.sleep(self.delay_s)
                target.sendall(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
