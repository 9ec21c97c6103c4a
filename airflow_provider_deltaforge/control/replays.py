"""Replays of dead letters as things one can ask for, look at and withdraw."""

from collections.abc import Iterator
from dataclasses import dataclass

from airflow_provider_deltaforge.control.dead_letters import refuse_unknown
from airflow_provider_deltaforge.control.pipelines import changed, existing, now_ms
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.control import ControlRecord
from airflow_provider_deltaforge.storage.records.dead_letters import (
    DeadLetter,
    DeadLetterFilter,
    DeadLetterRecords,
)
from airflow_provider_deltaforge.storage.records.requests import (
    Overtaken,
    Replay,
    ReplayRequest,
    Replays,
    new_ticket,
    withdrawn,
)


@dataclass(frozen=True, slots=True)
class ReplayPreview:
    """What a replay would do with one entry, and why."""

    dead_letter: DeadLetter
    action: str
    sinks: tuple[str, ...]
    why: str


def request(
    store: Store,
    name: str,
    which: DeadLetterFilter,
    overtaken: Overtaken,
    by: str,
    ticket: str | None = None,
) -> str:
    """Ask for a replay; the driver that runs serves it, or the next one that starts.

    Args:
        store: the state store.
        name: the pipeline.
        which: the entries that are meant.
        overtaken: what becomes of entries whose row has newer events in the sink.
        by: who asks.
        ticket: of a request whose answer was lost, to ask again; None makes a new one.

    Returns:
        Its ticket.

    Raises:
        SpecError: there is no such pipeline, or nothing of it could fit.
    """
    refuse_unknown(store, name, which)
    new = ReplayRequest(
        ticket=ticket or new_ticket(),
        which=which,
        overtaken=overtaken,
        requested_at_ms=now_ms(),
        by=by,
    )

    def place(record: ControlRecord) -> ControlRecord:
        if record.request(new.ticket) is not None:
            return record
        return changed(record, replays=[*record.replays, new])

    existing(store, name).update(place)
    return new.ticket


def replay(store: Store, name: str, ticket: str) -> Replay | None:
    """Return what became of a replay; None while it waits for a driver.

    Raises:
        SpecError: it is unknown or long forgotten, or there is no such pipeline.
    """
    control = existing(store, name)
    replay = Replays(store, name).of(ticket)
    if replay is None:
        record = control.read()
        if record is None or record.request(ticket) is None:
            raise SpecError(f"pipeline {name!r} knows no replay {ticket}")
    return replay


def cancel(store: Store, name: str, ticket: str, reason: str) -> None:
    """Withdraw a replay; what was sent stays sent.

    Raises:
        SpecError: there is no such pipeline.
    """

    def withdraw(record: ControlRecord) -> ControlRecord:
        kept = withdrawn(record.replays, reason, lambda known: known.ticket == ticket)
        return changed(record, replays=kept)

    existing(store, name).update(withdraw)


def foresee(
    store: Store, name: str, which: DeadLetterFilter, overtaken: Overtaken
) -> Iterator[ReplayPreview]:
    """Yield what a replay would do now with every entry that is meant.

    Raises:
        SpecError: there is no such pipeline, or it was never applied.
    """
    from airflow_provider_deltaforge.engine.replay.plan import ReplayPlan

    document = existing(store, name).document()
    if document is None:
        raise SpecError(f"pipeline {name!r} was never applied to this state store")
    refuse_unknown(store, name, which)
    spec = load(document, expand=False).spec
    plan = ReplayPlan(spec, which, overtaken, Checkpoints(store, name, spec.source.id).load())
    for dead_letter in DeadLetterRecords(store, name).read():
        verdict = plan.judge(dead_letter)
        if verdict is not None:
            yield ReplayPreview(dead_letter, verdict.action, verdict.sinks, verdict.why)
