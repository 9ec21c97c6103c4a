"""One thread per sink: it writes a batch until it is durable, and says so when it is not."""

import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from airflow_provider_deltaforge.engine.patience import patiently
from airflow_provider_deltaforge.errors import FatalError, RetryableError
from airflow_provider_deltaforge.events.message import Messages, Rejection
from airflow_provider_deltaforge.sinks.contract import (
    Cursor,
    ExactlyOnceWriter,
    Interruptible,
    Sink,
    SinkWriter,
)

_CLOSE_S = 1.5

Span = tuple[Cursor, Cursor]
"""What a sink holds before a batch and after it; for sinks that hold the position themselves."""


class SinkWatcher(Protocol):
    """Is told how a sink is doing."""

    def sink_trouble(self, sink_id: str, error: BaseException | None) -> None:
        """Called at every failed attempt, and with None when the sink is back."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """What one sink is given of a batch.

    Attributes:
        messages: what it lacks.
        span: where it stands before and after them, if it holds the position itself. Then nothing
            of them is durable while anything is refused.
    """

    messages: Messages
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class Delivered:
    """How writing one batch to one sink ended.

    ``error`` None means durable, but for ``rejections``.
    """

    rejections: Sequence[Rejection] = ()
    error: Exception | None = None
    cursor: Cursor | None = None
    """How far the sink holds the log, if that was asked."""

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
        self._jobs: queue.Queue[Callable[[], Delivered] | None] = queue.Queue(1)
        self._results: queue.Queue[Delivered] = queue.Queue(1)
        self._writer: SinkWriter | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"sink-{sink.id}", daemon=True)
        self._thread.start()

    def submit(self, parcel: Parcel) -> None:
        """Hand over a batch; fetch its result before the next one."""
        self._jobs.put(partial(self._write, parcel))

    def ask(self) -> None:
        """Ask a sink that holds the position itself for it; fetch the result as of a batch."""
        self._jobs.put(self._recover)

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
        while (job := self._jobs.get()) is not None:
            outcome = self._attempt(job)
            del job  # Its messages are not held while waiting for the next ones.
            self._results.put(outcome)
        if self._writer is not None:
            self._writer.close()

    def _attempt(self, job: Callable[[], Delivered]) -> Delivered:
        try:
            return patiently(
                job,
                partial(self._watcher.sink_trouble, self._sink.id),
                self._ending.is_set,
                self._ending.wait,
            )
        except Exception as error:  # noqa: BLE001 - outcomes are data; the lane decides
            return Delivered(error=error)

    def _write(self, parcel: Parcel) -> Delivered:
        if not len(parcel.messages):
            return Delivered()  # Of a batch that was filtered to nothing the sink need not know.
        writer = self._opened()
        if parcel.span is None:
            return Delivered(writer.write(parcel.messages))
        return Delivered(_exact(writer).write_once(parcel.messages, *parcel.span))

    def _recover(self) -> Delivered:
        return Delivered(cursor=_exact(self._opened()).recover())

    def _opened(self) -> SinkWriter:
        if self._writer is None:
            self._writer = self._sink.open(self._pipeline)
        if self._closing.is_set():
            # Nobody waits any more: sent now, it could arrive behind what the next lane sends.
            raise RetryableError(f"sink {self._sink.id}: the lane ended before this batch was sent")
        return self._writer


def _exact(writer: SinkWriter) -> ExactlyOnceWriter:
    if isinstance(writer, ExactlyOnceWriter):
        return writer
    raise FatalError(f"{type(writer).__name__} cannot deliver exactly once; its sink says it does")


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
        self, parcels: Mapping[str, Parcel], give_up: Callable[[], bool]
    ) -> dict[str, Delivered] | None:
        """Write to every named sink and wait for all of them.

        Args:
            parcels: by sink id; a sink that is not named gets nothing.
            give_up: asked while waiting; True leaves the batch undelivered.

        Returns:
            How each ended, or None if given up.
        """
        for sink_id, parcel in parcels.items():
            self._threads[sink_id].submit(parcel)
        return self._results(parcels, give_up)

    def cursors(
        self, sink_ids: Sequence[str], give_up: Callable[[], bool]
    ) -> dict[str, Delivered] | None:
        """Ask sinks how far they hold the log, and shut former writers of them out.

        Args:
            sink_ids: sinks that hold the position themselves.
            give_up: asked while waiting; True asks no longer.

        Returns:
            What each said, or None if given up.
        """
        for sink_id in sink_ids:
            self._threads[sink_id].ask()
        return self._results(sink_ids, give_up)

    def _results(
        self, sink_ids: Iterable[str], give_up: Callable[[], bool]
    ) -> dict[str, Delivered] | None:
        outcomes: dict[str, Delivered] = {}
        for sink_id in sink_ids:
            while (outcome := self._threads[sink_id].result(0.1)) is None:
                if give_up():
                    return None
            outcomes[sink_id] = outcome
        return outcomes

    def close(self) -> None:
        """Close every sink."""
        for thread in self._threads.values():
            thread.close()
