"""A wire to a server on which bytes can be changed, as by a proxy that means well."""

import select
import socket
import threading

from tests.servers.process import HOST


class Wire:
    """Carries connections to a server, and changes what is said on them.

    Args:
        server: behind it.

    Attributes:
        port: where it listens.
        questions: what the server gets instead of which bytes; of the same length.
        answers: what its clients get instead of which bytes.
    """

    def __init__(self, server):
        self.questions = {}
        self.answers = {}
        self._server = server
        self._listener = socket.create_server((HOST, 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self):
        self._listener.close()

    def _serve(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection((self._server.host, self._server.port))
            threading.Thread(target=self._carry, args=(client, server), daemon=True).start()

    def _carry(self, client, server):
        with client, server:
            while True:
                for sender in select.select([client, server], [], [])[0]:
                    changes = self.answers if sender is server else self.questions
                    try:
                        data = sender.recv(1 << 20)
                        for old, new in changes.items():
                            data = data.replace(old, new)
                        (client if sender is server else server).sendall(data)
                    except OSError:
                        return
                    if not data:
                        return
