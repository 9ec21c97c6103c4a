"""At a lane's start, what sinks hold themselves wins over what was stored about them.

Every sink that delivers exactly once is asked before the log is opened. That shuts former writers
out, so that nothing of them can follow, and then the sink's checkpoint is set to what it tells.
Everything after that only knows checkpoints.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from typing import Any

from airflow_provider_deltaforge.engine.heart import Heart
from airflow_provider_deltaforge.engine.job import Bench
from airflow_provider_deltaforge.engine.once import tells
from airflow_provider_deltaforge.engine.patience import patiently
from airflow_provider_deltaforge.engine.policy import Policy
from airflow_provider_deltaforge.engine.sinking import SinkWatcher, exact_writer, holds_position
from airflow_provider_deltaforge.errors import (
    DeltaForgeError,
    FatalError,
    FencedError,
    RetryableError,
)
from airflow_provider_deltaforge.sinks.contract import Cursor, Interruptible, Sink, SinkWriter
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.checkpoints import Checkpoints, Stand
from airflow_provider_deltaforge.storage.contract import Delete, Write
from airflow_provider_deltaforge.telemetry.redaction import redacted

_OPTIONAL_S = 5.0
_POLL_S = 0.2
_TAKEOVERS, _TAKEOVERS_S = 30, 120.0

_log = logging.getLogger(__name__)


class Cursors:
    """Compares them for one lane. Used by its delivery thread.

    Args:
        bench: the opened job; its fence guards every write.
        watcher: told about trouble of sinks.
        heart: says when to give up.
    """

    def __init__(self, bench: Bench, watcher: SinkWatcher, heart: Heart) -> None:
        spec = bench.pipeline.spec
        self._bench, self._watcher, self._ending = bench, watcher, heart.ending
        self._sinks = [sink for sink in spec.sinks if holds_position(sink)]
        self.sink_ids = frozenset(sink.id for sink in self._sinks)
        self._policy = Policy.of(spec)
        self._source = spec.source
        self._found: dict[str, Cursor | None] = {}
        self._opened: list[SinkWriter] = []
        self._takeovers: deque[float] = deque(maxlen=_TAKEOVERS)

    def settle(self) -> None:
        """Set the checkpoints of sinks that hold the position themselves to what they tell.

        A sink that the pipeline goes on without is not waited for: its checkpoint is compared when
        it is written to first.

        Raises:
            RetryableError: the lane was asked to end, or the store is away.
            PositionLostError: what a sink holds cannot be compared with its checkpoint.
            AccessError, FatalError: as a sink's write does.
        """
        if not self._sinks:
            return
        self._found = self._recovered()
        checkpoints = self._checkpoints()
        writes: list[Write] = []
        for name, told in self._found.items():
            stand = checkpoints.stand(name)
            if stand is not None:
                writes += self._compared(checkpoints, name, told, stand)
            elif told is not None and not self._is_reset():
                _log.warning(
                    "sink %s: the state store knows no position of it; it goes on at its own, %s",
                    name,
                    dict(told.position),
                )
                writes.append(checkpoints.put(name, told.position, _texts(told)))
        self._store(writes)

    def adopt(self) -> None:
        """Note what sinks tell that have a checkpoint only now, and begin there.

        Raises:
            RetryableError: the store is away.
        """
        checkpoints = self._checkpoints()
        writes: list[Write] = []
        for name, told in self._found.items():
            stand = checkpoints.stand(name)
            if stand is not None and stand.held is None:
                writes.append(checkpoints.put(name, stand.position, _texts(told)))
        if self._sinks and self._is_reset():
            writes.append(Delete(names.CURSORS, self._bench.pipeline.name))
        self._store(writes)

    def taken_over(self, error: FencedError) -> None:
        """Let the lane take its sinks over once more.

        Raises:
            FatalError: it did so too often just now: two pipelines of one name would for ever.
        """
        _log.warning("sinks are taken over again: %s", redacted(str(error)))
        now = time.monotonic()
        if len(self._takeovers) == _TAKEOVERS and now - self._takeovers[0] < _TAKEOVERS_S:
            raise FatalError(
                f"{error}. Taken over {_TAKEOVERS} times in {_TAKEOVERS_S:g} s: does another "
                "pipeline of this name, with a state store of its own, write there? Rename one"
            )
        self._takeovers.append(now)

    def _compared(
        self, checkpoints: Checkpoints, name: str, told: Cursor | None, stand: Stand
    ) -> list[Write]:
        """Return what is to be stored where a sink tells something else than its checkpoint."""
        at = stand.position
        if stand.held is None:
            _log.info("sink %s delivers exactly once from %s on", name, dict(at))
            return [checkpoints.put(name, at, _texts(told))]
        if tells(told, stand.held):
            return []
        if told is None:
            _log.warning(
                "sink %s holds no position any more: was it emptied? It goes on at its "
                "checkpoint, %s",
                name,
                dict(at),
            )
            return [checkpoints.put(name, at, ())]
        if self._source.covers(told.position, at):
            return [checkpoints.put(name, told.position, _texts(told))]
        _log.warning(
            "sink %s has lost what it held: its checkpoint is %s, it holds the log up to %s. "
            "It goes on from there",
            name,
            dict(at),
            dict(told.position),
        )
        return [checkpoints.put(name, told.position, _texts(told), back=True)]

    def _recovered(self) -> dict[str, Cursor | None]:
        """Ask all sinks at once; those that the pipeline needs are waited for."""
        pool = ThreadPoolExecutor(len(self._sinks), thread_name_prefix="cursor")
        late = threading.Event()
        asked = {sink.id: pool.submit(self._recover, sink, late) for sink in self._sinks}
        pool.shutdown(wait=False)
        count = len(self._bench.pipeline.spec.sinks)
        may_lag = self._policy.may_lag
        needed = {name: one for name, one in asked.items() if not may_lag(name, count)}
        while wait(needed.values(), _POLL_S).not_done:
            self._abandon_if_ending()
        deadline = time.monotonic() + _OPTIONAL_S
        while wait(asked.values(), _POLL_S).not_done and time.monotonic() < deadline:
            self._abandon_if_ending()
        late.set()
        self._abandon()
        found = {name: one.result() for name, one in needed.items()}
        optional = {name: one for name, one in asked.items() if name not in needed and one.done()}
        return found | _answers(optional)

    def _abandon_if_ending(self) -> None:
        if self._ending.is_set():
            self._abandon()

    def _abandon(self) -> None:
        for writer in list(self._opened):
            if isinstance(writer, Interruptible):
                writer.abandon()

    def _recover(self, sink: Sink, late: threading.Event) -> Cursor | None:
        def attempt() -> Cursor | None:
            if late.is_set():
                # Now it would shut out the writer with which the lane goes on.
                raise RetryableError(f"sink {sink.id}: it did not tell its position in time")
            writer = sink.open(self._bench.pipeline.name)
            self._opened.append(writer)
            try:
                return exact_writer(writer).recover()
            finally:
                self._opened.remove(writer)
                with suppress(DeltaForgeError):
                    writer.close()

        ending = self._ending
        tell = partial(self._watcher.sink_trouble, sink.id)
        try:
            return patiently(attempt, tell, lambda: ending.is_set() or late.is_set(), ending.wait)
        finally:
            if late.is_set():
                tell(None)  # From here on the lane's own writer says how the sink is.

    def _is_reset(self) -> bool:
        """Say whether a person has the pipeline begin anew, whatever its sinks hold."""
        return self._bench.store.get(names.CURSORS, self._bench.pipeline.name) is not None

    def _checkpoints(self) -> Checkpoints:
        checkpoints = Checkpoints(
            self._bench.store, self._bench.pipeline.name, self._source.id, self._source.compare
        )
        checkpoints.load()
        return checkpoints

    def _store(self, writes: Sequence[Write]) -> None:
        if writes:
            self._bench.store.transact(writes, self._bench.fence)


def _answers(asked: Mapping[str, "Future[Cursor | None]"]) -> dict[str, Any]:
    return {name: one.result() for name, one in asked.items() if one.exception() is None}


def _texts(told: Cursor | None) -> tuple[str, ...]:
    return () if told is None else (told.as_text().decode(),)
