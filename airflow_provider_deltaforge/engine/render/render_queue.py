"""Rendering for one sink, in the order of the log, which others do not wait for.

Batches are rendered ahead of delivery. Where that fails, the sink's own thread does it as the sink
is given the batch, so that what an encoding needs holds up nobody else; ahead, it asks no server,
since that may answer slowly. Nothing is rendered in front of a batch that is still to be: a schema
registry compares each schema with the one before.
"""

import threading
from collections.abc import Sequence

import pyarrow as pa

from airflow_provider_deltaforge.encodings.contract import UnaskedError
from airflow_provider_deltaforge.engine.render.renderer import Renderer
from airflow_provider_deltaforge.errors import EventError, RetryableError
from airflow_provider_deltaforge.events.message import Messages, Rejection

_MOMENT_S = 0.2


class DeferredRender:
    """The messages of one batch for one sink, once they are rendered.

    Args:
        queue: renders them.
        rows: the batch.
    """

    def __init__(self, queue: "RenderQueue", rows: pa.RecordBatch) -> None:
        self._queue = queue
        self.rows = rows
        self.made: tuple[Messages, Sequence[Rejection]] | None = None
        self.error: RetryableError | None = None
        """Why they could not be rendered ahead, for the first who asks."""

    def make(self) -> None:
        """Render them, if that is not done yet. Called when everything before them is over.

        Raises:
            Exception: why they cannot be, now or ever.
        """
        error, self.error = self.error, None
        if error is not None and self.made is None:
            raise error
        self._queue.make(self)

    def drop(self) -> None:
        """Note that the lane has gone on, with the sink or without it."""
        self._queue.drop(self)


class RenderQueue:
    """Renders what is read of one opening of the log for one sink.

    Args:
        renderer: the sink's.
        moment_s: how long to wait for one who renders for the sink just now.
    """

    def __init__(self, renderer: Renderer, moment_s: float = _MOMENT_S) -> None:
        self._renderer = renderer
        self._moment_s = moment_s
        self._changing = threading.Lock()
        self._due: list[DeferredRender] = []
        self._fails = False

    def ahead(self, rows: pa.RecordBatch, *, wanted: bool) -> DeferredRender:
        """Render a batch ahead of its delivery, if nothing speaks against it.

        Args:
            rows: change events.
            wanted: the sink will be given the batch, as far as anybody knows.

        Raises:
            EventError: an event cannot be rendered, and nothing can set it aside.
        """
        deferred = DeferredRender(self, rows)
        with self._changing:
            self._due.append(deferred)
        # The sink's thread, at the batch before, would else have to render this one as well, and
        # so on; but if that hangs, nobody waits for it.
        if wanted and not self._fails and self._renderer.busy.acquire(timeout=self._moment_s):
            try:
                if not self._fails:
                    self._make_due()
            finally:
                self._renderer.busy.release()
        return deferred

    def make(self, deferred: DeferredRender) -> None:
        """Render a batch now; see ``DeferredRender.make``."""
        with self._renderer.busy:
            self._render(deferred, asks=True)

    def drop(self, deferred: DeferredRender) -> None:
        """Render a batch ahead no more."""
        with self._changing:
            self._due = [waiting for waiting in self._due if waiting is not deferred]

    def _make_due(self) -> None:
        for waiting in list(self._due):
            try:
                self._render(waiting, asks=False)
            except EventError:
                raise
            except UnaskedError:
                return  # No trouble: the sink's thread asks.
            except Exception as error:  # noqa: BLE001 - the sink's thread meets it, or tells it
                waiting.error = error if isinstance(error, RetryableError) else None
                return

    def _render(self, deferred: DeferredRender, *, asks: bool) -> None:
        if deferred.made is None:
            try:
                deferred.made = self._renderer.render(deferred.rows, asks=asks)
            except Exception:
                self._fails = True
                raise
        self._fails = False
        self.drop(deferred)
