"""Keeps one connection in an event loop of its own, and replaces it when it broke.

Between two writes the loop answers the server's pings and notices a lost connection.
"""

import asyncio
import random
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from airflow_provider_deltaforge.errors import DeltaForgeError, RetryableError, WrongServerError
from airflow_provider_deltaforge.sinks.nats.client import NatsClient
from airflow_provider_deltaforge.sinks.nats.login import without_login
from airflow_provider_deltaforge.sinks.nats.sink import NatsSink
from airflow_provider_deltaforge.sinks.nats.streams import Stream, Streams
from airflow_provider_deltaforge.telemetry.listener import other_server, place_in

_PORT = 4222

Result = TypeVar("Result")

_END_S = 1.0


class EventLoopThread:
    """Runs one coroutine at a time for the thread that writes.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._running: Future[Any] | None = None
        self._given_up = False
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Return what ``work`` returns.

        Raises:
            CancelledError: ``give_up`` was called.
        """
        with self._lock:
            if self._given_up or not self._thread.is_alive():
                work.close()
                raise CancelledError
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._running = future
        try:
            return future.result()
        finally:
            self._running = None

    def give_up(self) -> None:
        """Cancel what runs, and refuse what comes. Called from another thread."""
        with self._lock:
            self._given_up = True
            if self._running is not None:
                self._running.cancel()

    def close(self, last: Coroutine[Any, Any, object]) -> None:
        """Run ``last`` and end the thread, both within a few seconds."""
        if not self._thread.is_alive():
            last.close()
            return
        self.give_up()
        ending = asyncio.run_coroutine_threadsafe(asyncio.wait_for(last, _END_S), self._loop)
        ending.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._loop.stop))
        self._thread.join(3 * _END_S)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        if left:
            self._loop.run_until_complete(asyncio.wait(left, timeout=_END_S))
        self._loop.close()


@dataclass
class NatsConnection:
    """What a writer holds instead of a connection.

    Attributes:
        sink: the description.
        name: how the server's monitoring names us.
        streams: what the present connection knows of streams.
    """

    sink: NatsSink
    name: str
    streams: Streams | None = None
    _discovered: list[str] = field(default_factory=list)
    _former: dict[str, Stream] = field(default_factory=dict)

    async def up(self) -> Streams:
        """Return what the present connection knows, on a new one where the old one broke.

        Raises:
            RetryableError: no server answers.
            AccessError, FatalError: see ``NatsClient.connect`` and ``Streams.check``.
        """
        if self.streams is not None and self.streams.client.fit:
            return self.streams
        await self.drop()
        client = await self._connect()
        self._discovered = client.known_servers
        self.streams = Streams(client, self.sink, self._former)
        try:
            await self.streams.check()
        except BaseException:
            await self.drop()
            raise
        return self.streams

    async def drop(self) -> None:
        """Give the connection up, with whatever it has not sent."""
        streams, self.streams = self.streams, None
        if streams is not None:
            await streams.client.drop()

    async def _connect(self) -> NatsClient:
        servers = self.sink.servers
        random.shuffle(servers)
        problem = RetryableError(f"nats sink {self.sink.id}: url names no server")
        for address in dict.fromkeys([*servers, *self._discovered]):
            try:
                return await NatsClient.connect(self.sink, address, self.name)
            except RetryableError as error:
                problem = error
        raise await self._named(problem)

    async def _named(self, problem: RetryableError) -> DeltaForgeError:
        """Return an error, or a clearer one where something else answers in NATS's place."""
        shown = (without_login(server) for server in self.sink.servers)
        places = [place for each in shown if (place := place_in(each, _PORT)) is not None]
        found = await asyncio.to_thread(other_server, "NATS", places)
        if found is None:
            return problem
        return WrongServerError(f"nats sink {self.sink.id}: url: {found}; correct 'url'")
