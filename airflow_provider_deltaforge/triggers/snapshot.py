"""Watch a snapshot from the triggerer, and publish how far it is."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from airflow.sdk import Variable
from airflow.triggers.base import TriggerEvent

from airflow_provider_deltaforge.control.snapshots import (
    SCRIPT,
    RequestState,
    is_done,
    progress,
    request_state,
    requests,
    short,
)
from airflow_provider_deltaforge.control.status import PipelineStatus, status
from airflow_provider_deltaforge.control.supervise import HangDetector
from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.records.control import Control, ControlRecord
from airflow_provider_deltaforge.telemetry.redaction import redacted
from airflow_provider_deltaforge.triggers.stream import StreamTrigger
from airflow_provider_deltaforge.triggers.withdrawal import withdraw_unless_adopted

COPIES_SHOWN = 10


class SnapshotTrigger(StreamTrigger):
    """Fires when the copy is settled, or when its task must act; mirrors progress meanwhile.

    A job that this task started is supervised like a stream. A driver that belongs to somebody
    else is only looked at: its own supervisor restarts it. When nobody has for ``patience_s``, or
    when a job ended that could not know of the request, ``unserved`` fires.

    The Variable ``deltaforge_<pipeline>`` is for people and dashboards. The state store is the
    truth, and nothing here reads the Variable back. Whoever writes it writes all of it: the
    pipeline's own snapshot, and every copy that was asked for.

    Args:
        deltaforge_conn_id: connection of the state store.
        watch: what is watched, as whom; returned with every event.
        resubmit_at_ms: fire ``resubmit`` then, instead of watching.
        request_id: the request; None for the pipeline's own snapshot.
        patience_s: how long another's driver may be gone.
        poll_s: seconds between two looks at the store.
    """

    def __init__(
        self,
        deltaforge_conn_id: str,
        watch: Mapping[str, Any],
        resubmit_at_ms: int | None = None,
        request_id: str | None = None,
        patience_s: float = 180.0,
        poll_s: float = 2.0,
    ) -> None:
        super().__init__(deltaforge_conn_id, watch, resubmit_at_ms, poll_s=poll_s)
        self.request_id = request_id
        self.patience_s = patience_s
        self._gone = HangDetector(patience_s)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event; publish progress until then."""
        mirror = asyncio.create_task(self._mirror())
        try:
            async for event in super().run():
                yield event
        finally:
            mirror.cancel()

    def stop_if_still_owner(self) -> None:
        """Withdraw the request; for the pipeline's own snapshot end the job of this task."""
        if self.request_id is None:
            super().stop_if_still_owner()
            return
        arguments = (self.deltaforge_conn_id, self.watched, self.request_id, self.task_instance)
        try:
            withdraw_unless_adopted(*arguments)
        except Exception:
            self.log.exception("could not withdraw %s", self.request_id)

    def _judge(self, store: Store, hook: DeltaForgeHook) -> tuple[TriggerEvent | None, str]:
        name = self.pipeline
        record = Control(store, name).read()
        if record is None:
            return self._event("deleted", reason="the pipeline was deleted"), "deleted"
        state = request_state(store, name, self.request_id) if self.request_id else None
        settled = is_done(store, name) if state is None else state.settled
        if settled or (self.request_id and state is None):
            return self._event("settled"), "settled"
        if (record.owner, record.generation) == (self.watched.owner, self.watched.generation):
            return super()._judge(store, hook)
        present = status(store, name, hook.backend())
        event = self._event_of_anothers(record, present)
        return (
            event,
            f"{present.status}, {state.state if state is not None else 'its own snapshot'}",
        )

    def _event_of_anothers(
        self, record: ControlRecord, present: PipelineStatus
    ) -> TriggerEvent | None:
        gone = self._gone.too_long(lost=not present.alive)
        if present.alive:
            streams = present.status == "running"
            return self._event("not_due") if streams and self.request_id is None else None
        if record.desired == "stopped":
            return self._event("stopped")
        if record.desired == "paused":
            return None  # Nobody may read a thing; what was asked for waits.
        drained = (record.handle or {}).get("script") == SCRIPT and present.status == "stopped"
        return self._event("unserved") if gone or drained else None

    def _event(self, event: str, **details: Any) -> TriggerEvent:
        return super()._event(event, request_id=self.request_id, **details)

    async def _mirror(self) -> None:
        published: Mapping[str, Any] | None = None
        logged = ""
        while True:
            try:
                progress = await asyncio.to_thread(self._mirrored)
                if progress != published:
                    name = variable(self.pipeline, self.deltaforge_conn_id)
                    await asyncio.to_thread(publish, name, progress)
                    published, logged = progress, ""
            except Exception as error:  # noqa: BLE001 - it must never end the supervision
                words = redacted(f"{type(error).__name__}: {error}")
                if words != logged:
                    self.log.warning("progress of %s not published: %s", self.pipeline, words)
                logged = words
            await asyncio.sleep(self.poll_s)

    def _mirrored(self) -> Mapping[str, Any]:
        with self.hook.store() as store:
            return mirror_of(store, self.pipeline)


def counts_of(store: Store, name: str, request_id: str | None) -> Mapping[str, Any] | None:
    """Return how far a request, or the pipeline's own snapshot, is; None before it began.

    All its tables are there; what travels through Airflow's database is made of it by ``short``.
    """
    if request_id is None:
        own = progress(store, name)
        return None if own is None else {**own, "request": None}
    state = request_state(store, name, request_id)
    if state is None or not (state.copied or state.settled):
        return None
    return _progress_of(state)


def mirror_of(store: Store, name: str) -> dict[str, Any]:
    """Return what people see of a pipeline's copies: its own snapshot, and the latest requests."""
    copies = {state.id: counts_of(store, name, state.id) for state in requests(store, name)}
    shown = [(key, short(counts)) for key, counts in copies.items() if counts is not None]
    own = counts_of(store, name, None)
    return {"snapshot": own and short(own), "copies": dict(shown[-COPIES_SHOWN:])}


def variable(pipeline: str, conn_id: str) -> str:
    """Return the name of a pipeline's mirror: one for each state store that has one of its name."""
    if conn_id == DeltaForgeHook.default_conn_name:
        return f"deltaforge_{pipeline}"
    return f"deltaforge_{conn_id}_{pipeline}"


def publish(name: str, progress: Mapping[str, Any]) -> None:
    """Write the mirror Variable of a pipeline."""
    Variable.set(name, json.dumps(progress, default=str))


def _progress_of(state: RequestState) -> dict[str, Any]:
    tables = state.copied.values()
    done = "chunks" if state.settled else "chunks_done"
    return {
        "request": state.id,
        "state": state.state,
        "finished": state.state == "done",
        "chunks": sum(table["chunks"] for table in tables),
        "chunks_done": sum(table[done] for table in tables),
        "rows": state.rows,
        "started_at_ms": state.started_at_ms,
        "finished_at_ms": state.finished_at_ms,
        "reason": state.reason,
        "tables": dict(state.copied),
    }
