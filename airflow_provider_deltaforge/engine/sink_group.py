"""A batch goes to all sinks at once, and those are waited for that the commit policy needs."""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from airflow_provider_deltaforge.engine.sinking import Delivered, Parcel, SinkThread, SinkWatcher
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.sinks.contract import Sink

_LATE_S = 30.0
_POLL_S = 0.1

Enough = Callable[[Collection[str]], bool]
"""Says whether it is enough that these sinks have taken a batch."""


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
