"""One thread per sink: it writes a batch until it is durable, and says so when it is not."""

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from airflow_provider_deltaforge.engine.patience import patiently
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.events.message import Messages, Rejection
from airflow_provider_deltaforge.sinks.contract import Interruptible, Sink, SinkWriter

_CLOSE_S = 1.5


class SinkWatcher(Protocol):
    """Is told how a sink is doing."""

    def sink_trouble(self, sink_id: str, error: BaseException | None) -> None:
        """Called at every failed attempt, and with None when the sink is back."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """How writing one batch to one sink ended.

    ``error`` None means durable, but for ``rejections``.
    """

    rejections: Sequence[Rejection] = ()
    error: Exception | None = None

    def durable(self) -> Sequence[Rejection]:
        """Return what the sink refused while the rest is durable; raise what it could not do."""
        if self.error is not None:
            raise self.error
        return self.rejections


class SinkThread:
    """Owns a sink's connection. ``submit`` and ``result`` are called by one other thread.

    Args:
        sink: the description.
        pipeline: the pipeline's name.
        watcher: told about trouble.
        ending: set when the lane ends; a failing write is then given up.
    """

    def __init__(
        self, sink: Sink, pipeline: str, watcher: SinkWatcher, ending: threading.Event
    ) -> None:
        self._sink = sink
        self._pipeline = pipeline
        self._watcher = watcher
        self._ending = ending
        self._jobs: queue.Queue[Messages | None] = queue.Queue(1)
        self._results: queue.Queue[Delivered] = queue.Queue(1)
        self._writer: SinkWriter | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"sink-{sink.id}", daemon=True)
        self._thread.start()

    def submit(self, messages: Messages) -> None:
        """Hand over a batch; fetch its result before the next one."""
        self._jobs.put(messages)

    def result(self, timeout_s: float) -> Delivered | None:
        """Return how the batch ended, or None while it is being written."""
        try:
            return self._results.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def close(self) -> None:
        """Close the connection; a write that hangs is left to its daemon thread."""
        self._closing.set()
        self._jobs.put(None)
        writer = self._writer
        if isinstance(writer, Interruptible):
            writer.abandon()
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        while (messages := self._jobs.get()) is not None:
            outcome = self._deliver(messages)
            del messages  # Not held while waiting for the next ones.
            self._results.put(outcome)
        if self._writer is not None:
            self._writer.close()

    def _deliver(self, messages: Messages) -> Delivered:
        try:
            rejections = patiently(
                partial(self._write, messages),
                partial(self._watcher.sink_trouble, self._sink.id),
                self._ending.is_set,
                self._ending.wait,
            )
        except Exception as error:  # noqa: BLE001 - outcomes are data; the lane decides
            return Delivered(error=error)
        return Delivered(rejections)

    def _write(self, messages: Messages) -> Sequence[Rejection]:
        if not len(messages):
            return ()  # Of a batch that was filtered to nothing the sink need not know.
        if self._writer is None:
            self._writer = self._sink.open(self._pipeline)
        if self._closing.is_set():
            # Nobody waits any more: sent now, it could arrive behind what the next lane sends.
            raise RetryableError(f"sink {self._sink.id}: the lane ended before this batch was sent")
        return self._writer.write(messages)


class SinkGroup:
    """All sinks of a lane: a batch goes to every one at once."""

    def __init__(
        self,
        sinks: Sequence[Sink],
        pipeline: str,
        watcher: SinkWatcher,
        ending: threading.Event,
    ) -> None:
        self._threads = {sink.id: SinkThread(sink, pipeline, watcher, ending) for sink in sinks}

    def deliver(
        self, messages: dict[str, Messages], give_up: Callable[[], bool]
    ) -> dict[str, Delivered] | None:
        """Write to every named sink and wait for all of them.

        Args:
            messages: by sink id; a sink that is not named gets nothing.
            give_up: asked while waiting; True leaves the batch undelivered.

        Returns:
            How each ended, or None if given up.
        """
        for sink_id, batch in messages.items():
            self._threads[sink_id].submit(batch)
        outcomes: dict[str, Delivered] = {}
        for sink_id in messages:
            while (outcome := self._threads[sink_id].result(0.1)) is None:
                if give_up():
                    return None
            outcomes[sink_id] = outcome
        return outcomes

    def close(self) -> None:
        """Close every sink."""
        for thread in self._threads.values():
            thread.close()
