"""What people and schedulers ask a pipeline for, and what became of it.

A request stands in the control record, in the order of asking, until it is served. What became of
it is a *result*, which whoever serves it writes in the transaction that does the work. Removing the
request from the control record is a second step: a driver killed in between finds the result under
the request's *ticket* and only removes. So no request is lost, and none is served twice.

Commands to sinks (``records.gaps``) are none of these: they wait for the state of a sink, the last
one counts, and they are taken out in the transaction that moves the sink's checkpoint.
"""

import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Generic, Literal, TypeVar

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from airflow_provider_deltaforge.spec.settings import Settings
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.contract import Delete, Put, Store, Write
from airflow_provider_deltaforge.storage.records.dead_letters import DeadLetterFilter
from airflow_provider_deltaforge.storage.records.record import Record, now_ms

RESULTS_KEPT = 50
REPLAYS_KEPT = 20

State = Literal["done", "failed", "cancelled"]

Overtaken = Literal["skip", "send", "drop"]
"""What to do with an entry whose row has a newer event in the sink: leave it in the queue, send it
all the same, or forget it."""


def new_ticket() -> str:
    """Return the ticket of a request that nobody has made yet."""
    return uuid.uuid4().hex[:12]


class Request(Settings):
    """Something that somebody asked for."""

    ticket: str = Field(default_factory=new_ticket)
    """Ours, never used twice."""
    requested_at_ms: int
    by: str
    """Who may withdraw it: the asker's token."""
    cancelled: str | None = None
    """Why it is not to be served any more; the next driver that sees it records that."""


class SnapshotRequest(Request):
    """A copy that somebody asked for."""

    id: str
    """The asker's name for it; asked again while pending, it is the same request. An id that was
    served may be asked again."""
    tables: list[str] = Field(default_factory=list)
    """Patterns of captured tables; empty: all of them."""
    where: str | None = None
    repairs: str | None = None
    """The verification whose differing rows are copied, and no others."""

    @model_serializer(mode="wrap")
    def _as_stored(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what only a repair has."""
        fields: dict[str, Any] = dump(self)
        if self.repairs is None:
            fields.pop("repairs", None)
        return fields

    @property
    def wish(self) -> dict[str, Any]:
        """Return what is to be copied."""
        repair = {} if self.repairs is None else {"repairs": self.repairs}
        return {"tables": list(self.tables), "where": self.where, **repair}


class ReplayRequest(Request):
    """A replay of dead letters that somebody asked for."""

    which: DeadLetterFilter = DeadLetterFilter()
    overtaken: Overtaken = "skip"


R = TypeVar("R", bound=Request)


def withdrawn(requests: Iterable[R], reason: str, is_meant: Callable[[R], bool]) -> list[R]:
    """Return requests, those that are meant cancelled for a reason."""
    update = {"cancelled": reason}
    return [known.model_copy(update=update) if is_meant(known) else known for known in requests]


class RequestResult(Record):
    """What became of a request, or of it so far."""

    described: ClassVar[str]
    """In errors."""

    v: Literal[1] = 1
    ticket: str
    state: Literal["running", "done", "failed", "cancelled"]
    started_at_ms: int | None = None
    finished_at_ms: int | None = None
    reason: str | None = None
    error_class: str | None = None

    @property
    def settled(self) -> bool:
        """Return whether nothing more will happen to it."""
        return self.state != "running"


class SnapshotResult(RequestResult):
    """What became of a copy."""

    described = "snapshot result"

    id: str
    wish: dict[str, Any]
    by: str
    requested_at_ms: int
    tables: dict[str, dict[str, int]] = Field(default_factory=dict)
    """By full table name: ``{"chunks": n, "rows": n}``, what was copied until it ended."""


class Replay(RequestResult):
    """What became of a replay."""

    described = "replay"

    state: Literal["running", "done", "failed", "cancelled"] = "running"
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

    def begun_again(self) -> "Replay":
        """Return how it stands when it begins anew: what stays is looked at, and counted, again."""
        stays = ("refused", "overtaken", "behind", "away", "unfit")
        return self.model_copy(update=dict.fromkeys(stays, 0))


A = TypeVar("A", bound=RequestResult)


class Results(Generic[A]):
    """The latest results of one pipeline's requests of one kind.

    Args:
        store: the state store.
        kind: of the results.
        place: the namespace, and the prefix of the keys there.
        kept: how many.
    """

    def __init__(self, store: Store, kind: type[A], place: tuple[str, str], kept: int) -> None:
        self._store = store
        self._kind = kind
        self._namespace, self._prefix = place
        self._kept = kept

    def all(self) -> list[A]:
        """Return them, the one that ended first before the others."""
        stored = self._store.items(self._namespace, self._prefix)
        results = [self._read(text, key) for key, text in stored]
        return sorted(results, key=lambda result: result.finished_at_ms or 0)

    def of(self, ticket: str) -> A | None:
        """Return what became of one request; None before anything did."""
        text = self._store.get(self._namespace, f"{self._prefix}{ticket}")
        return self._read(text, ticket) if text is not None else None

    def put(self, result: A, needed: Iterable[str] = ()) -> list[Write]:
        """Return the writes that keep a result, and forget the oldest once it is settled.

        Args:
            result: what to keep.
            needed: tickets that still stand in the control record; their results must stay.
        """
        key = f"{self._prefix}{result.ticket}"
        write = Put(self._namespace, key, result.model_dump_json().encode())
        return [write, *(self._surplus({*needed, result.ticket}) if result.settled else ())]

    def _surplus(self, stays: set[str]) -> Sequence[Delete]:
        old = [kept for kept in self.all() if kept.settled and kept.ticket not in stays]
        surplus = old[: max(0, len(old) + 1 - self._kept)]
        return [Delete(self._namespace, f"{self._prefix}{kept.ticket}") for kept in surplus]

    def _read(self, text: bytes, name: str) -> A:
        return self._kind.from_stored(text, f"{self._kind.described} {name}")


class SnapshotResults(Results[SnapshotResult]):
    """The latest results of one pipeline's snapshot requests."""

    def __init__(self, store: Store, pipeline: str) -> None:
        place = (names.SNAPSHOTS, f"{pipeline}/result/")
        super().__init__(store, SnapshotResult, place, RESULTS_KEPT)

    def latest(self, request_id: str) -> SnapshotResult | None:
        """Return the latest result of an id."""
        found = [result for result in self.all() if result.id == request_id]
        return found[-1] if found else None


class Replays(Results[Replay]):
    """The latest replays of one pipeline."""

    def __init__(self, store: Store, pipeline: str) -> None:
        super().__init__(store, Replay, (names.JOURNAL, f"{pipeline}/replay/"), REPLAYS_KEPT)


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
