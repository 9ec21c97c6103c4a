"""Replication slots of PostgreSQL: whose they are, and dropping those that nobody reads any more.

A slot keeps the server's log until it is dropped. That of a pipeline belongs to the pipeline; that
of a DataFrame query (``spark.readStream.format("deltaforge")``) has its reader's name, and nobody
but a person knows whether the query will ever run again.
"""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

import yaml

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.sources.postgres import slots as replication_slots
from airflow_provider_deltaforge.sources.postgres.slots import HeldSlot
from airflow_provider_deltaforge.sources.postgres.source import PostgresSource
from airflow_provider_deltaforge.spec.document import Pipeline
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.records.control import Control


@dataclass(frozen=True, slots=True)
class OwnedSlot:
    """A slot of a document's database.

    Attributes:
        slot: what the server says of it.
        owner: whose it is, in words; empty: nobody's that is known here.
        kept_for: why it is not dropped; None if it may be.
    """

    slot: HeldSlot
    owner: str
    kept_for: str | None


def list_slots(pipeline: Pipeline, store: Store) -> list[OwnedSlot]:
    """Return the slots of a document's database, those first that keep most.

    Raises:
        SpecError: the document's source is no PostgreSQL.
        RetryableError, AccessError: the server could not be asked.
    """
    source = _source_of(pipeline)
    users = _users(store)
    with closing(source.connect()) as connection:
        found = replication_slots.held_slots(connection)
    return [_owned(slot, source.slot_settings.name, users) for slot in found]


def drop_slot(pipeline: Pipeline, store: Store, name: str, *, confirm: str) -> HeldSlot:
    """Drop one slot of a document's database; return what it was.

    Raises:
        SpecError: there is no such slot, it may not be dropped, or the confirmation differs.
        RetryableError, AccessError: the server could not be asked, or did not let us.
    """
    found = {owned.slot.name: owned for owned in list_slots(pipeline, store)}
    if name not in found:
        known = ", ".join(found) or "none"
        raise SpecError(f"there is no slot {name!r} for this document's database (known: {known})")
    if confirm != name:
        raise SpecError(f"to drop slot {name!r}, confirm with its name; what it keeps is lost")
    if (why := found[name].kept_for) is not None:
        raise SpecError(f"slot {name!r} is not dropped: {why}")
    with closing(_source_of(pipeline).connect()) as connection:
        replication_slots.drop_slot(connection, name)
    return found[name].slot


def _source_of(pipeline: Pipeline) -> PostgresSource:
    source = pipeline.spec.source
    if not isinstance(source, PostgresSource):
        raise SpecError(f"spec.source: a source of type {source.connector} has no slots")
    return source


def _users(store: Store) -> Mapping[str, str | None]:
    """Return the slot of each pipeline that reads PostgreSQL; None: it is unknown here.

    Only the names count: the server may be called differently in each document.
    """
    users: dict[str, str | None] = {}
    for name in Control.list_pipelines(store):
        text = Control(store, name).document() or ""
        source = load(text, expand=False).spec.source
        if isinstance(source, PostgresSource):
            varies = "${" in str(yaml.safe_load(text)["spec"]["source"]["config"]["slot"])
            users[name] = _expanded(text) if varies else source.slot_settings.name
    return users


def _expanded(text: str) -> str | None:
    try:
        source = load(text).spec.source
    except SpecError:
        return None  # A variable is not set here.
    return source.slot_settings.name if isinstance(source, PostgresSource) else None


def _owned(slot: HeldSlot, own: str, users: Mapping[str, str | None]) -> OwnedSlot:
    of_pipeline = [pipeline for pipeline, used in users.items() if used == slot.name]
    mains = {own, *(used for used in users.values() if used is not None)}
    beside = max((main for main in mains if slot.name.startswith(f"{main}_")), key=len, default="")
    unread = [pipeline for pipeline, used in users.items() if used is None]
    owner, why = "", None
    if of_pipeline:
        owner = f"pipeline {of_pipeline[0]}"
        why = f"pipeline {of_pipeline[0]!r} of this state store reads from it"
    elif slot.name == own:
        owner = "this document, not applied here"
    elif beside:
        reader = slot.name.removeprefix(f"{beside}_")
        owner = f"by its name a DataFrame reader {reader!r} of {beside}"
    else:
        why = (
            "its name is none that DeltaForge gives to this document's readers; if you know it, "
            f"run: SELECT pg_drop_replication_slot('{slot.name}')"
        )
    if why is None and slot.active:
        why = "somebody reads from it; stop the query first"
    if why is None and unread:
        why = (
            f"the document of pipeline {unread[0]!r} cannot be read here, so it may be its slot; "
            "set the variables it needs"
        )
    return OwnedSlot(slot, owner, why)
