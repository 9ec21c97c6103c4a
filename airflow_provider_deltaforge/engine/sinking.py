"""One thread per sink: it writes a batch until it is durable, and says so when it is not."""

import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
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
_LATE_S = 30.0
_POLL_S = 0.1

Enough = Callable[[Collection[str]], bool]
"""Says whether it is enough that these sinks have taken a batch."""

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
        news: set whenever an attempt has ended.
    """

    def __init__(
        self,
        sink: Sink,
        pipeline: str,
        watcher: SinkWatcher,
        ending: threading.Event,
        news: threading.Event | None = None,
    ) -> None:
        self._sink = sink
        self._pipeline = pipeline
        self._watcher = watcher
        self._ending = ending
        self._jobs: queue.Queue[Callable[[], Delivered] | None] = queue.Queue(1)
        self._results: queue.Queue[Delivered] = queue.Queue(1)
        self._writer: SinkWriter | None = None
        self._closing = threading.Event()
        self._news = news or threading.Event()
        self.failing = False
        """Its last attempt has failed; it tries again."""
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
            return self._results.get(timeout_s > 0, timeout_s)
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
            self._news.set()
        self._let_go()

    def _attempt(self, job: Callable[[], Delivered]) -> Delivered:
        try:
            return patiently(job, self._tell, self._is_over, self._ending.wait)
        except Exception as error:  # noqa: BLE001 - outcomes are data; the lane decides
            if not isinstance(error, RetryableError):
                self._let_go()  # Refused for good: whoever tries again has another connection.
            return Delivered(error=error)

    def _tell(self, error: BaseException | None) -> None:
        self._watcher.sink_trouble(self._sink.id, error)
        self.failing = error is not None
        self._news.set()

    def _is_over(self) -> bool:
        return self._ending.is_set() or self._closing.is_set()

    def _let_go(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(Exception):
                writer.close()

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
    """All sinks of a lane: a batch goes to every one at once.

    Args:
        sinks: the descriptions.
        pipeline: the pipeline's name.
        watcher: told about trouble.
        ending: set when the lane ends.
        deadline_s: how long one sink may take for one batch until that is trouble.
    """

    def __init__(
        self,
        sinks: Sequence[Sink],
        pipeline: str,
        watcher: SinkWatcher,
        ending: threading.Event,
        deadline_s: float | None = None,
    ) -> None:
        self._watcher = watcher
        self._deadline_s = deadline_s
        self._news = threading.Event()
        self._threads = {
            sink.id: SinkThread(sink, pipeline, watcher, ending, self._news) for sink in sinks
        }

    def thread(self, sink_id: str) -> SinkThread:
        """Return the thread of a sink, for whoever goes on with it alone."""
        return self._threads[sink_id]

    def deliver(
        self,
        parcels: Mapping[str, Parcel],
        give_up: Callable[[], bool],
        enough: Enough | None = None,
        joining: Callable[[], Mapping[str, Parcel]] = dict,
    ) -> dict[str, Delivered] | None:
        """Write to every named sink and wait until it is enough.

        Args:
            parcels: by sink id; a sink that is not named gets nothing.
            give_up: asked while waiting; True leaves the batch undelivered.
            enough: says whether the sinks that have taken it will do. The others are left with
                the batch if they fail or take too long. None: every sink is waited for.
            joining: asked while waiting, for sinks that are given the batch now.

        Returns:
            How each ended that was waited for, or None if given up.
        """
        for sink_id, parcel in parcels.items():
            self._threads[sink_id].submit(parcel)
        return self._results(parcels, give_up, enough, joining)

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
        self,
        sink_ids: Iterable[str],
        give_up: Callable[[], bool],
        enough: Enough | None = None,
        joining: Callable[[], Mapping[str, Parcel]] = dict,
    ) -> dict[str, Delivered] | None:
        begun = dict.fromkeys(sink_ids, time.monotonic())
        outcomes: dict[str, Delivered] = {}
        late: set[str] = set()
        while True:
            self._news.clear()
            for sink_id in begun.keys() - outcomes.keys():
                outcome = self._threads[sink_id].result(0)
                if outcome is not None:
                    outcomes[sink_id] = outcome
                    if sink_id in late:
                        self._watcher.sink_trouble(sink_id, outcome.error)
            waiting = begun.keys() - outcomes.keys()
            late |= self._late({name: begun[name] for name in waiting - late})
            if not waiting or (
                enough is not None and self._will_do(outcomes, waiting, late, enough)
            ):
                return outcomes
            if give_up():
                return None
            for sink_id, parcel in joining().items():
                begun[sink_id] = time.monotonic()
                self._threads[sink_id].submit(parcel)
            self._news.wait(_POLL_S)

    def _late(self, begun: Mapping[str, float]) -> set[str]:
        """Return the sinks that have just become late; say so where the document has a limit."""
        limit_s = self._deadline_s or _LATE_S
        late = {name for name, at in begun.items() if time.monotonic() - at > limit_s}
        for name in late if self._deadline_s else ():
            error = f"sink {name}: one batch has taken more than {limit_s:g} s (backpressure)"
            self._watcher.sink_trouble(name, RetryableError(error))
        return late

    def _will_do(
        self,
        outcomes: Mapping[str, Delivered],
        waiting: Collection[str],
        late: Collection[str],
        enough: Enough,
    ) -> bool:
        """Say whether those that have not taken the batch can be left, and should be."""
        slow = (name in late or self._threads[name].failing for name in waiting)
        taken = [name for name, outcome in outcomes.items() if outcome.error is None]
        return all(slow) and enough(taken)

    def close(self) -> None:
        """Close every sink."""
        for thread in self._threads.values():
            thread.close()
