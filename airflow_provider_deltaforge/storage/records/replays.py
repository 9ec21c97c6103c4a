"""Replays of dead letters: asked for by people, and what became of them.

A request stands in the control record until it is served, as those for snapshots do. What became
of it is written in the transactions that take entries out of the queue.
"""

import uuid
from typing import Literal

from pydantic import Field

from airflow_provider_deltaforge.spec.settings import Settings
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.contract import Delete, Put, Store, Write
from airflow_provider_deltaforge.storage.records.dead_letters import DeadLetterFilter
from airflow_provider_deltaforge.storage.records.record import Record

KEPT = 20

Overtaken = Literal["skip", "send", "drop"]
"""What to do with an entry whose row has a newer event in the sink: leave it in the queue, send it
all the same, or forget it."""


def new_ticket() -> str:
    """Return the name of a replay that nobody has asked for yet."""
    return uuid.uuid4().hex[:12]


class ReplayRequest(Settings):
    """A replay that somebody asked for."""

    ticket: str = Field(default_factory=new_ticket)
    which: DeadLetterFilter = DeadLetterFilter()
    overtaken: Overtaken = "skip"
    requested_at_ms: int
    by: str
    cancelled: str | None = None
    """Why it is not to be served any more; the next driver that sees it records that."""


class Replay(Record):
    """What became of a replay, or of it so far."""

    v: Literal[1] = 1
    ticket: str
    state: Literal["running", "done", "failed", "cancelled"] = "running"
    started_at_ms: int
    finished_at_ms: int | None = None
    at_seq: int = 0
    """Everything up to it was looked at."""
    sent: int = 0
    """Entries that their sinks hold now; they are no longer in the queue."""
    refused: int = 0
    """Entries that were refused again, and stay."""
    dropped: int = 0
    """Entries that a newer event had overtaken, and that were forgotten as asked."""
    overtaken: int = 0
    """Entries that a newer event had overtaken, and that stay."""
    behind: int = 0
    """Entries that stay because an earlier one of their row does."""
    away: int = 0
    """Entries that stay because an optional sink is away or behind."""
    unfit: int = 0
    """Entries that cannot be sent again."""
    reason: str | None = None
    error_class: str | None = None

    @property
    def settled(self) -> bool:
        """Return whether nothing more will happen to it."""
        return self.state != "running"

    def begun_again(self) -> "Replay":
        """Return how it stands when it begins anew: what stays is looked at, and counted, again."""
        stays = ("refused", "overtaken", "behind", "away", "unfit")
        return self.model_copy(update=dict.fromkeys(stays, 0))


class Replays:
    """The latest replays of one pipeline."""

    def __init__(self, store: Store, pipeline: str) -> None:
        self._store = store
        self._prefix = f"{pipeline}/replay/"

    def of(self, ticket: str) -> Replay | None:
        """Return what became of one, or None before it was begun."""
        text = self._store.get(names.JOURNAL, f"{self._prefix}{ticket}")
        return Replay.from_stored(text, f"replay {ticket}") if text is not None else None

    def put(self, replay: Replay) -> Put:
        """Return the write that says how a replay stands, for a fenced transaction."""
        key = f"{self._prefix}{replay.ticket}"
        return Put(names.JOURNAL, key, replay.model_dump_json().encode())

    def forget_old(self) -> list[Write]:
        """Return the writes that forget all but the latest."""
        stored = self._store.items(names.JOURNAL, self._prefix)
        all_ = [(Replay.from_stored(text, f"replay {key}"), key) for key, text in stored]
        ended = sorted((replay.finished_at_ms or 0, key) for replay, key in all_ if replay.settled)
        return [Delete(names.JOURNAL, key) for _, key in ended[:-KEPT]]
