"""Asks the sinks that hold the position themselves what they hold, all at once."""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from airflow_provider_deltaforge.engine.base.required_sinks import RequiredSinks
from airflow_provider_deltaforge.engine.base.retry import retry_until
from airflow_provider_deltaforge.engine.base.task_context import TaskContext
from airflow_provider_deltaforge.engine.deliver.sink_fences import SinkFences, claim
from airflow_provider_deltaforge.engine.deliver.sink_thread import SinkWatcher, exact_writer
from airflow_provider_deltaforge.errors import DeltaForgeError, RetryableError
from airflow_provider_deltaforge.sinks.contract import Interruptible, Sink, SinkWriter
from airflow_provider_deltaforge.sinks.position_contract import (
    BeginsEmpty,
    LosesPositionWithMessages,
    SinkPosition,
)

_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class SinkAnswer:
    """What a sink tells of itself.

    Attributes:
        cursor: how far it holds the log.
        has_expired: it holds no position any more, because it was to keep its messages no longer.
        loses_both: a position that is gone has taken the messages with it.
        begins_empty: it can hold a position before the first message.
    """

    cursor: SinkPosition | None
    has_expired: bool = False
    loses_both: bool = False
    begins_empty: bool = False


class SinkAnswers:
    """Asks the sinks of one lane. Used by its delivery thread.

    Args:
        context: the opened job; its epoch is the newest.
        watcher: hears of trouble of sinks.
        ending: set when the lane ends; asking then ends as well.
    """

    def __init__(self, context: TaskContext, watcher: SinkWatcher, ending: threading.Event) -> None:
        self._context, self._watcher, self._ending = context, watcher, ending
        self._policy = RequiredSinks.of(context.pipeline.spec)
        self._opened: list[SinkWriter] = []

    def ask_all(self, sinks: Mapping[str, Sink], *, waits: bool = True) -> dict[str, SinkAnswer]:
        """Return what each sink answers; those that the pipeline needs are waited for.

        Args:
            sinks: the descriptions by id; at least one.
            waits: False: they are waited for as briefly as the others.

        Raises:
            RetryableError: the lane was asked to end, or the store is away.
            AccessError, FatalError: as the write of a sink does that is waited for.
        """
        pool = ThreadPoolExecutor(len(sinks), thread_name_prefix="cursor")
        late = threading.Event()
        asked = {sink.id: pool.submit(self.ask, sink, late, answer_of) for sink in sinks.values()}
        pool.shutdown(wait=False)
        count = len(self._context.pipeline.spec.sinks)
        may_lag = self._policy.may_lag
        needed = {
            name: answer for name, answer in asked.items() if waits and not may_lag(name, count)
        }
        try:
            while (answers := wait(needed.values(), _POLL_S)).not_done:
                for answer in answers.done:
                    answer.result()
                self._abandon_if_ending()
        except BaseException:
            late.set()
            self._abandon()
            raise
        deadline = time.monotonic() + self._context.job.tuning.optional_sink_s
        while wait(asked.values(), _POLL_S).not_done and time.monotonic() < deadline:
            self._abandon_if_ending()
        late.set()
        self._abandon()
        found = {name: answer.result() for name, answer in needed.items()}
        optional = {
            name: answer for name, answer in asked.items() if name not in needed and answer.done()
        }
        return found | _answers(optional)

    def _abandon_if_ending(self) -> None:
        if self._ending.is_set():
            self._abandon()

    def _abandon(self) -> None:
        for writer in list(self._opened):
            if isinstance(writer, Interruptible):
                writer.abandon()

    def ask(
        self, sink: Sink, late: threading.Event, ask: Callable[[SinkWriter], SinkAnswer]
    ) -> SinkAnswer:
        """Return what one sink answers, over a connection of its own.

        Args:
            sink: the description.
            late: set once nobody waits any more.
            ask: what to do with the connection.

        Raises:
            RetryableError, AccessError, FatalError: as ``ask_all`` does.
        """

        def attempt() -> SinkAnswer:
            if late.is_set():
                # Now it would shut out the writer with which the lane goes on.
                raise RetryableError(f"sink {sink.id}: it did not tell its position in time")
            over = lambda: self._ending.is_set() or late.is_set()  # noqa: E731
            right = SinkFences(self._context).of(sink.id, over)
            writer = sink.open(self._context.pipeline.name)
            self._opened.append(writer)
            try:
                claim(sink, writer, right)
                return ask(writer)
            finally:
                self._opened.remove(writer)
                with suppress(DeltaForgeError):
                    writer.close()
                    right.leave()

        ending = self._ending
        tell = partial(self._watcher.report_sink_error, sink.id)
        try:
            return retry_until(attempt, tell, lambda: ending.is_set() or late.is_set(), ending.wait)
        finally:
            if late.is_set():
                tell(None)  # From here on the lane's own writer says how the sink is.


def answer_of(writer: SinkWriter) -> SinkAnswer:
    """Shut former writers out, and return what the sink holds."""
    sink_position = exact_writer(writer).recover()
    loses_both = isinstance(writer, LosesPositionWithMessages)
    has_expired = isinstance(writer, LosesPositionWithMessages) and writer.has_expired
    return SinkAnswer(sink_position, has_expired, loses_both, isinstance(writer, BeginsEmpty))


def _answers(asked: Mapping[str, "Future[SinkAnswer]"]) -> dict[str, SinkAnswer]:
    return {name: answer.result() for name, answer in asked.items() if answer.exception() is None}
