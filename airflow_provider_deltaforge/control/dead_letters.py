"""The dead-letter queue of a pipeline, for people: look, and make room."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from airflow_provider_deltaforge.control.pipelines import existing
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.records.dead_letters import (
    DeadLetter,
    DeadLetterFilter,
    DeadLetterRecords,
)
from airflow_provider_deltaforge.telemetry.redaction import redacted

LIMIT = 50


EVERY = DeadLetterFilter()


def count(store: Store, name: str, which: DeadLetterFilter = EVERY) -> int:
    """Return how many events are set aside.

    Raises:
        SpecError: there is no such pipeline, or nothing of it could fit.
    """
    queue = _queue(store, name)
    if which == EVERY:
        return queue.count()
    refuse_unknown(store, name, which)
    return sum(1 for _ in _chosen(queue, which))


def entries(
    store: Store, name: str, which: DeadLetterFilter = EVERY, limit: int = LIMIT, after: int = 0
) -> list[dict[str, Any]]:
    """Return what is set aside, oldest first; the limit counts what fits.

    Args:
        store: the state store.
        name: the pipeline.
        which: what is asked for.
        limit: at most so many.
        after: only behind this sequence number.

    Raises:
        SpecError: there is no such pipeline, or nothing of it could fit.
    """
    refuse_unknown(store, name, which)
    chosen = _chosen(_queue(store, name), which, after)
    return [_plain(dead_letter) for dead_letter in islice(chosen, limit)]


def oldest(store: Store, name: str, which: DeadLetterFilter = EVERY) -> dict[str, Any]:
    """Return the oldest event that is set aside, of those that are asked for.

    Raises:
        SpecError: there is none, or there is no such pipeline.
    """
    found = entries(store, name, which, limit=1)
    if not found:
        asked = "" if which == EVERY else " that fits"
        raise SpecError(f"nothing of pipeline {name!r}{asked} is set aside")
    return found[0]


def refuse_unknown(store: Store, name: str, which: DeadLetterFilter) -> None:
    """Refuse a sink or processor that neither the document nor an entry names.

    Raises:
        SpecError: it is none, or there is no such pipeline.
    """
    document = existing(store, name).document()
    if document is None:
        return
    spec = load(document, expand=False).spec
    for key, wanted, configured in (
        ("sink", which.sink, {sink.id for sink in spec.sinks}),
        ("processor", which.processor, {processor.id for processor in spec.processors}),
    ):
        if wanted is None or wanted in configured:
            continue
        metas = (dead_letter.meta for dead_letter in DeadLetterRecords(store, name).read())
        refusing = {getattr(meta, f"{key}_id") for meta in metas}
        if wanted not in refusing:
            known = ", ".join(sorted(filter(None, configured | refusing))) or "none"
            raise SpecError(f"pipeline {name!r} has no {key} {wanted!r} (known: {known})")


def entry(store: Store, name: str, seq: int) -> dict[str, Any]:
    """Return one event that is set aside.

    Raises:
        SpecError: it is not there, or there is no such pipeline.
    """
    for found in entries(store, name, limit=1, after=seq - 1):
        if found["seq"] == seq:
            return found
    raise SpecError(f"pipeline {name!r} has no dead letter {seq}; see `deltaforge dlq list {name}`")


def ack(store: Store, name: str, up_to_seq: int) -> int:
    """Forget everything up to and including a sequence number; return how many.

    Raises:
        SpecError: there is no such pipeline.
    """
    return _queue(store, name).ack(up_to_seq)


def purge(store: Store, name: str) -> int:
    """Forget everything; return how many.

    Raises:
        SpecError: there is no such pipeline.
    """
    return _queue(store, name).purge()


def _queue(store: Store, name: str) -> DeadLetterRecords:
    existing(store, name)
    return DeadLetterRecords(store, name)


def _chosen(
    queue: DeadLetterRecords, which: DeadLetterFilter, after: int = 0
) -> Iterator[DeadLetter]:
    return (dead_letter for dead_letter in queue.read(after) if which.fits(dead_letter))


def _plain(dead_letter: DeadLetter) -> dict[str, Any]:
    """Return a dead letter for people: statements may hold the password of a remote table."""
    shown = dead_letter.model_dump(exclude={"v", "rest"})
    for sinks in ("overtaken", "delivered"):
        if not shown["meta"][sinks]:
            del shown["meta"][sinks]
    ddl = shown["event"].get("ddl")
    if isinstance(ddl, dict) and isinstance(ddl.get("sql"), str):
        shown["event"]["ddl"] = {**ddl, "sql": redacted(ddl["sql"])}
    return shown
