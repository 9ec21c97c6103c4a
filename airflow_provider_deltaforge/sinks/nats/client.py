"""One connection to one NATS server. Once broken it is never mended, but replaced.

The client's own reconnecting would send what it still held behind newer messages. So it is off,
and whatever a connection had not sent when it was given up is dropped with it.

What the client offers no way for (to drop its buffers, to insist on TLS, to send what is checked
already) is done with its inner parts, and only in this module.
"""

import asyncio
import base64
import json
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from airflow_provider_deltaforge.errors import DeltaForgeError, RetryableError
from airflow_provider_deltaforge.sinks.nats.error_codes import (
    NO_RESPONDERS,
    JetStreamRefusal,
    broken,
    refusal_in,
)
from airflow_provider_deltaforge.sinks.nats.login import (
    connect_options,
    insist_on_tls,
    with_login,
    without_login,
)
from airflow_provider_deltaforge.sinks.nats.sink import NatsSink

_CLOSE_S = 0.5
_LOOK_S = 0.1
_NO_LINGER = struct.pack("ii", 1, 0)
_LINE = b"\r\n"

Reply = Callable[[int, Any], None]
"""Called with the number of a message and its answer."""


@dataclass(frozen=True, slots=True)
class StreamMessage:
    """A message as a stream holds it."""

    seq: int
    headers: dict[str, str]
    time: str
    """When the server took it, in its own words."""


class NatsClient:
    """Made by ``connect``.

    Attributes:
        changed: Set when an answer came or the connection broke.
        on_reply: Called for every answer to a message.
    """

    def __init__(self, sink: NatsSink, address: str) -> None:
        import nats.aio.client

        self._where = f"nats sink {sink.id}"
        self._address = address
        self.server = without_login(address)
        self._client: Any = nats.aio.client.Client()
        self._inbox = ""
        self._replies: Any = None
        self._error: BaseException | None = None
        self.changed = asyncio.Event()
        self.on_reply: Reply = _ignore

    @classmethod
    async def connect(cls, sink: NatsSink, address: str, name: str) -> "NatsClient":
        """Connect to one server.

        Raises:
            RetryableError: it is away, or too slow.
            AccessError: it refuses our credentials, or TLS failed.
            SpecError: a file that the document names cannot be read.
        """
        client = cls(sink, address)
        options = connect_options(sink, address, client._speaks_tls)
        options["name"] = name
        options["error_cb"], options["disconnected_cb"] = client._note, client._closed
        try:
            await asyncio.wait_for(client._client.connect(**options), sink.connect_timeout_secs)
            insist_on_tls(sink, address, client._speaks_tls)
            client._inbox = client._client.new_inbox()
            client._replies = await client._client.subscribe(
                f"{client._inbox}.*", cb=client._take, pending_msgs_limit=0, pending_bytes_limit=0
            )
        except BaseException as error:
            await client.drop()
            if isinstance(error, Exception) and not isinstance(error, DeltaForgeError):
                raise client._broken(error) from error
            raise
        return client

    @property
    def fit(self) -> bool:
        """Whether it can still be used."""
        return self._error is None and bool(self._client.is_connected)

    @property
    def payload_max(self) -> int:
        """How many bytes a message may have, headers included."""
        return int(self._client.max_payload)

    @property
    def has_jetstream(self) -> bool:
        """Whether this server says that it runs JetStream."""
        return self._introduced("jetstream")

    @property
    def known_servers(self) -> list[str]:
        """Servers of the cluster that this one names, with the login that it took."""
        discovered = self._client.discovered_servers
        return [with_login(uri.geturl(), self._address) for uri in discovered]

    def check(self) -> None:
        """Raise what broke the connection, or what the server refused.

        Raises:
            RetryableError, AccessError: as ``connect`` does.
        """
        if not self.fit:
            raise self._broken()

    async def send(
        self, number: int | None, subject: str, headers: dict[str, str], payload: bytes
    ) -> None:
        """Send one message; ``on_reply`` gets its answer, if it has a number."""
        self.check()
        reply = "" if number is None else f"{self._inbox}.{number} "
        lines = "".join([f"{name}: {text}\r\n" for name, text in headers.items()])
        head = f"NATS/1.0\r\n{lines}\r\n".encode()
        command = f"HPUB {subject} {reply}{len(head)} {len(head) + len(payload)}\r\n".encode()
        client = self._client
        try:
            # What `publish` does, without checking and cleaning each header once more.
            await client._send_command(b"".join((command, head, payload, _LINE)))  # noqa: SLF001
            if client._flush_queue.empty():  # noqa: SLF001 - see above
                await client._flush_pending()  # noqa: SLF001
        except Exception as error:
            raise self._broken(error) from error

    async def wait(self, timeout_s: float) -> bool:
        """Wait until ``changed`` is set, and clear it; return whether it was."""
        try:
            await asyncio.wait_for(self.changed.wait(), max(0.0, timeout_s))
        except asyncio.TimeoutError:
            return False
        self.changed.clear()
        return True

    async def flush(self, timeout_s: float) -> None:
        """Return when the server has read all that was sent, and we its answers."""
        import nats.errors

        try:
            await asyncio.wait_for(self._written(), timeout_s)
            await self._client.flush(timeout_s)
        except (nats.errors.Error, OSError, asyncio.TimeoutError) as error:
            self.check()
            raise self._broken(error) from error
        while self._replies.pending_msgs:
            await asyncio.sleep(0)
        self.check()

    async def ask(self, what: str, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Return JetStream's answer.

        Raises:
            Refusal: it says no; code 0 if nobody answers for JetStream at all.
        """
        import nats.errors

        asking = asyncio.ensure_future(
            self._client.request(f"$JS.API.{what}", json.dumps(request).encode(), timeout_s)
        )
        try:
            # What is not permitted gets no answer: the server complains beside it.
            while not (await asyncio.wait({asking}, timeout=_LOOK_S))[0]:
                self.check()
            answer = await asking
        except nats.errors.NoRespondersError:
            raise JetStreamRefusal(0, "no server answers for JetStream") from None
        except (nats.errors.Error, OSError, asyncio.TimeoutError) as error:
            self.check()
            raise RetryableError(
                f"{self._where}: {self.server} does not answer $JS.API.{what} within "
                f"{timeout_s:g} s; check that the stream has a leader"
            ) from error
        finally:
            asking.cancel()
        found: dict[str, Any] = json.loads(answer.data)
        if "error" in found:
            raise refusal_in(found["error"])
        return found

    async def message(
        self, stream: str, seq: int, timeout_s: float, *, or_next: bool = False
    ) -> StreamMessage:
        """Return one message of a stream, or the next one that is there, without its payload."""
        request = {"seq": seq, "next_by_subj": ">"} if or_next else {"seq": seq}
        found = (await self.ask(f"STREAM.MSG.GET.{stream}", request, timeout_s))["message"]
        lines = base64.b64decode(found.get("hdrs", "")).split(_LINE)[1:]
        pairs = (line.decode(errors="replace").partition(":") for line in lines if line)
        headers = {name.strip(): value.strip() for name, _, value in pairs}
        return StreamMessage(found["seq"], headers, found["time"])

    async def drop(self) -> None:
        """Close at once; what is not sent yet never will be."""
        client = self._client
        client._pending, client._pending_data_size = [], 0  # noqa: SLF001 - see above
        writer = getattr(client._transport, "_io_writer", None)  # noqa: SLF001
        if writer is not None:
            plain = writer.get_extra_info("socket")
            with suppress(OSError, AttributeError):
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            writer.transport.abort()
        with suppress(Exception, asyncio.CancelledError):
            await asyncio.wait_for(client.close(), _CLOSE_S)

    async def _written(self) -> None:
        # The client's ping would overtake what it has not given to the socket yet.
        while self._client.pending_data_size and self.fit:
            await asyncio.sleep(0.001)

    async def _take(self, message: Any) -> None:
        number = message.subject.rpartition(".")[2]
        if number.isdigit():
            self.on_reply(int(number), message)
            self.changed.set()

    async def _note(self, error: BaseException) -> None:
        self._error = error
        self.changed.set()

    async def _closed(self) -> None:
        self.changed.set()

    def _broken(self, error: BaseException | None = None) -> DeltaForgeError:
        causes = (self._error, self._client.last_error, error)
        return broken(causes, self._where, self.server)

    def _speaks_tls(self) -> bool:
        return self._introduced("tls_required")

    def _introduced(self, what: str) -> bool:
        return bool(self._client._server_info.get(what))  # noqa: SLF001 - see above


def no_responders(message: Any) -> bool:
    """Return whether an answer means that nobody listens."""
    return bool(message.headers) and message.headers.get("Status") == NO_RESPONDERS


def _ignore(_number: int, _message: Any) -> None:
    pass
