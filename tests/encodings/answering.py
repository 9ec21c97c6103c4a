"""A server in front of a schema registry, or in place of one that refuses or is silent."""

import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.waiting import PATIENCE_S


class Answering(ThreadingHTTPServer):
    """Hands requests on, or answers each with one status; or, with neither, not at all."""

    def __init__(self, status=None, forward=None, code=1, port=0):
        self.status, self.forward, self.code = status, forward, code
        self.asked, self.over, self.body = [], threading.Event(), None
        super().__init__(("127.0.0.1", port), _Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def end(self):
        """Stop listening."""
        self.over.set()
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        server = self.server
        server.asked.append(self.headers.get("Authorization"))
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if server.forward is not None:
            self._answer(*self._forwarded(body))
        elif server.status is not None:
            told = server.body or b'{"error_code": %d, "message": "told"}' % server.code
            self._answer(server.status, told)
        else:
            server.over.wait(PATIENCE_S)

    def _forwarded(self, body):
        headers = {"Content-Type": self.headers["Content-Type"]}
        asked = urllib.request.Request(self.server.forward + self.path, body, headers)
        try:
            with urllib.request.urlopen(asked, timeout=30) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def _answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Say nothing."""
