"""Snapshot requests: copies asked for by people and schedulers, and what became of them.

A pending request stands in the control record, in the order of asking. What became of it is a
*result*, which the driver writes in the transaction that finishes the copy. Removing the request
from the control record is a second step: a driver killed in between finds the result under the
request's *ticket* and only removes. So no request is lost, and none is served twice.
"""

import uuid
from collections.abc import Iterable
from typing import Any, Literal

from pydantic import Field

from airflow_provider_deltaforge.spec.settings import Settings
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.contract import Delete, Put, Store, Write
from airflow_provider_deltaforge.storage.records.record import Record, now_ms

RESULTS_KEPT = 50

State = Literal["done", "failed", "cancelled"]


class SnapshotRequest(Settings):
    """A copy that somebody asked for."""

    id: str
    """The asker's name for it; asked again while pending, it is the same request."""
    ticket: str = Field(default_factory=lambda: uuid.uuid4().hex[:12])
    """Ours, never used twice: an id that was served may be asked again."""
    tables: list[str] = Field(default_factory=list)
    """Patterns of captured tables; empty: all of them."""
    where: str | None = None
    requested_at_ms: int
    by: str
    """Who may withdraw it: the asker's token."""
    cancelled: str | None = None
    """Why it is not to be served any more; the next driver that sees it records that."""

    @property
    def wish(self) -> dict[str, Any]:
        """Return what is to be copied."""
        return {"tables": list(self.tables), "where": self.where}


class SnapshotResult(Record):
    """What became of a request."""

    v: Literal[1] = 1
    id: str
    ticket: str
    state: State
    wish: dict[str, Any]
    by: str
    requested_at_ms: int
    started_at_ms: int | None = None
    finished_at_ms: int
    tables: dict[str, dict[str, int]] = Field(default_factory=dict)
    """By full table name: ``{"chunks": n, "rows": n}``, what was copied until it ended."""
    reason: str | None = None
    error_class: str | None = None


class SnapshotResults:
    """The latest results of one pipeline's requests."""

    def __init__(self, store: Store, pipeline: str) -> None:
        self._store = store
        self._prefix = f"{pipeline}/result/"

    def all(self) -> list[SnapshotResult]:
        """Return them, oldest first."""
        stored = self._store.items(names.SNAPSHOTS, self._prefix)
        results = [
            SnapshotResult.from_stored(text, f"snapshot result {key}") for key, text in stored
        ]
        return sorted(results, key=lambda result: result.finished_at_ms)

    def of(self, ticket: str) -> SnapshotResult | None:
        """Return what became of one request, or None while it is pending."""
        text = self._store.get(names.SNAPSHOTS, f"{self._prefix}{ticket}")
        return (
            SnapshotResult.from_stored(text, f"snapshot result {ticket}")
            if text is not None
            else None
        )

    def latest(self, request_id: str) -> SnapshotResult | None:
        """Return the latest result of an id."""
        found = [result for result in self.all() if result.id == request_id]
        return found[-1] if found else None

    def put(self, result: SnapshotResult, needed: Iterable[str] = ()) -> list[Write]:
        """Return the writes that keep a result and forget the oldest ones.

        Args:
            result: what to keep.
            needed: tickets that still stand in the control record; their results must stay.
        """
        stays = {*needed, result.ticket}
        old = [kept for kept in self.all() if kept.ticket not in stays]
        surplus = old[: max(0, len(old) + 1 - RESULTS_KEPT)]
        deletes = [Delete(names.SNAPSHOTS, f"{self._prefix}{kept.ticket}") for kept in surplus]
        key = f"{self._prefix}{result.ticket}"
        return [Put(names.SNAPSHOTS, key, result.model_dump_json().encode()), *deletes]


def result_of(request: SnapshotRequest, state: State, **details: Any) -> SnapshotResult:
    """Return the result of a request that ends now."""
    return SnapshotResult(
        id=request.id,
        ticket=request.ticket,
        state=state,
        wish=request.wish,
        by=request.by,
        requested_at_ms=request.requested_at_ms,
        finished_at_ms=now_ms(),
        **details,
    )
