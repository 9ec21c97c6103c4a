"""Where a stream begins that has never run."""

import zlib
from typing import Any

from airflow_provider_deltaforge.errors import FatalError, SpecError
from airflow_provider_deltaforge.sources.postgres.positions import WalPosition, lsn_text, parse_lsn
from airflow_provider_deltaforge.sources.postgres.publication import (
    NewTables,
    check_roots,
    creation_of,
    ensure_publication,
    publication_exists,
)
from airflow_provider_deltaforge.sources.postgres.server import PostgresServer, read_head
from airflow_provider_deltaforge.sources.postgres.settings import (
    PublicationSettings,
    SlotSettings,
    StartPosition,
)
from airflow_provider_deltaforge.sources.postgres.slots import (
    ReplicationSlot,
    check_failover,
    check_usable,
    create_slot,
    find_slot,
)
from airflow_provider_deltaforge.spec.patterns import TableMatcher

_NAME_MAX = 63


def prepare(
    connection: Any,
    info: PostgresServer,
    slot: SlotSettings,
    publication: PublicationSettings,
    matcher: TableMatcher,
) -> tuple[ReplicationSlot, bool]:
    """See that publication and slot are there; return the slot, and whether it is new.

    The publication comes first: what was written before it existed cannot be read.

    Raises:
        FatalError: one is missing and not to be created, or the slot is another's.
        PositionLostError: the slot's log is gone.
        AccessError: we may not create what is missing.
        SpecError: a failover slot on a server that has none.
    """
    if info.wal_level != "logical":
        raise FatalError(
            f"wal_level is {info.wal_level}; set wal_level = logical in postgresql.conf and "
            "restart the server"
        )
    if slot.failover:
        check_failover(info)
    name = publication.name
    found = find_slot(connection, slot.name)
    if found is not None:
        check_usable(found, info)
        if not publication_exists(connection, name):
            create = creation_of(connection, info, name, matcher)[-1]
            raise FatalError(too_old(slot, name, create))
    ensure_publication(connection, info, name, matcher, create=publication.create)
    if publication.create and matcher.patterns:
        NewTables(name, matcher, info.version, add=True).look(connection)
    check_roots(connection, name, matcher)
    if found is not None:
        return found, False
    if not slot.create:
        raise FatalError(
            f"replication slot {slot.name!r} does not exist, and source.slot.create is false; run: "
            f"SELECT pg_create_logical_replication_slot('{slot.name}', 'pgoutput')"
        )
    return create_slot(connection, info, slot.name, failover=slot.failover), True


def too_old(slot: SlotSettings, publication: str, create: str) -> str:
    """Return what to do about a slot that is older than the publication it is to be read with."""
    again = f"; SELECT pg_create_logical_replication_slot('{slot.name}', 'pgoutput')"
    return (
        f"replication slot {slot.name!r} is there, but publication {publication!r} is not: what "
        "the slot holds cannot be read through a publication that is created later. Put the "
        "publication before the slot, and run: "
        f"{create}; SELECT pg_drop_replication_slot('{slot.name}')"
        f"{'' if slot.create else again}. What the "
        "slot holds now is not delivered: the next start's snapshot copies the rows, if the "
        "document asks for one"
    )


def first_position(
    connection: Any,
    info: PostgresServer,
    slot: ReplicationSlot,
    start: StartPosition,
    *,
    is_new: bool,
) -> WalPosition:
    """Return where the first run starts.

    Raises:
        SpecError: an LSN that the slot does not have, or no longer.
    """
    if start == "earliest" or (start == "latest" and is_new):
        return info.at(slot.confirmed)
    head = read_head(connection)
    if isinstance(start, str):
        return info.at(max(head.lsn, slot.confirmed))
    lsn = parse_lsn(start.lsn)
    if not slot.confirmed <= lsn <= max(head.lsn, slot.confirmed):
        raise SpecError(
            f"source.start_position.lsn: {start.lsn} is not in what slot {slot.name!r} holds, "
            f"{lsn_text(slot.confirmed)} to {lsn_text(head.lsn)}"
            + ("; the slot is new: an earlier LSN can never be read from it" if is_new else "")
        )
    return info.at(lsn)


def slot_beside(slot: str, reader: str) -> str:
    """Return the name of another reader's slot."""
    text = f"{slot}_{reader.lower()}"
    name = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in text)
    if name == f"{slot}_{reader}" and len(name) <= _NAME_MAX:
        return name
    return f"{name[: _NAME_MAX - 9]}_{zlib.crc32(f'{slot}/{reader}'.encode()):08x}"
