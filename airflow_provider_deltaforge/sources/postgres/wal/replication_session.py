"""Opening a session that sends the log: the server, the slot and the command checked before."""

import logging
import secrets
from dataclasses import dataclass
from functools import partial

from airflow_provider_deltaforge.errors import ServerChangedError
from airflow_provider_deltaforge.sources.postgres.connection import (
    PostgresDsn,
    connect,
    replication_connection,
)
from airflow_provider_deltaforge.sources.postgres.failover import check_history, check_promoted
from airflow_provider_deltaforge.sources.postgres.positions import WalPosition
from airflow_provider_deltaforge.sources.postgres.server import PostgresServer, server_info
from airflow_provider_deltaforge.sources.postgres.slots import (
    ReplicationSlot,
    check_free,
    check_slot,
    copy_slot,
    enable_failover,
    find_slot,
)
from airflow_provider_deltaforge.sources.postgres.tuning import POSTGRES_TUNING, PostgresTuning
from airflow_provider_deltaforge.sources.postgres.wal.message_prefixes import Prefixes
from airflow_provider_deltaforge.sources.postgres.wal.messages import MESSAGES_VERSION
from airflow_provider_deltaforge.sources.postgres.wal.replication_connection import (
    LogSocket,
    log_socket,
    start_command,
)
from airflow_provider_deltaforge.spec.patterns import TableMatcher

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ReaderSettings:
    """What a source's settings mean for its reader.

    Attributes:
        source_id: seeds the events' ids.
        dsn: the server.
        slot: which is read from.
        original: slot that ``slot`` is copied from if it does not exist.
        failover: standbys are to keep a copy of ``slot``.
        once: read from a temporary copy of ``slot``, which ends with the connection.
        publication: says what is sent.
        matcher: which tables are captured.
        prefixes: which logical messages are events.
        newcomers: look for tables that are not published: True publishes them, False says what to
            do; None does not look.
        heartbeat_s: how often to write a message into the log, 0 never.
        read_timeout_s: how long the server may be silent.
        plain: read the socket ourselves where it is not encrypted.
        decimal_numbers: ``numeric`` becomes a JSON number, not a string.
        tuning: how often it looks, how long it waits, how much it holds.
    """

    source_id: str
    dsn: PostgresDsn
    slot: str
    publication: str
    matcher: TableMatcher
    prefixes: Prefixes
    original: str | None = None
    failover: bool = False
    once: bool = False
    newcomers: bool | None = None
    heartbeat_s: float = 0
    read_timeout_s: float = 90
    plain: bool = True
    decimal_numbers: bool = False
    tuning: PostgresTuning = POSTGRES_TUNING


def ask(
    reading: ReaderSettings, position: WalPosition, known: PostgresServer | None = None
) -> tuple[PostgresServer, ReplicationSlot]:
    """See that server and slot can be read from after a position.

    Args:
        reading: the settings.
        position: where reading goes on.
        known: the server that was asked before; the slot must be free now.

    Raises:
        PositionLostError: the slot no longer holds what comes after it.
        ServerChangedError: another server answers than before.
        RetryableError: the server is away, or somebody else reads from the slot.
    """
    connection = connect(reading.dsn)
    try:
        info = server_info(connection)
        _same_server(info, known)
        check_history(connection, partial(replication_connection, reading.dsn), info, position)
        slot = find_slot(connection, reading.slot)
        if slot is None and reading.original is not None:
            copy_slot(connection, reading.original, reading.slot, temporary=False)
            slot = find_slot(connection, reading.slot)
        slot = check_slot(slot, reading.slot, info, position)
        check_promoted(connection, info, reading.slot)
        if reading.failover and known is None:
            why = enable_failover(slot, info, partial(replication_connection, reading.dsn))
            if why:
                log.warning("%s", why)
        if known is not None and not reading.once:
            check_free(slot)
        return info, slot
    finally:
        connection.close()


def start(reading: ReaderSettings, position: WalPosition, info: PostgresServer) -> LogSocket:
    """Make the server send its log after a position.

    Raises:
        RetryableError, FatalError: the server refused; perhaps only when the socket is read.
    """
    connection = replication_connection(reading.dsn)
    name = reading.slot
    if reading.once:
        name = f"{name[:50]}_{secrets.token_hex(4)}"
        try:
            copy_slot(connection, reading.slot, name, temporary=True)
        except BaseException:
            connection.close()
            raise
    messages = info.version >= MESSAGES_VERSION
    command = start_command(name, position.lsn, reading.publication, messages=messages)
    return log_socket(connection, command, plain=reading.plain)


def _same_server(info: PostgresServer, known: PostgresServer | None) -> None:
    if known is not None and (known.system_id, known.timeline) != (info.system_id, info.timeline):
        raise ServerChangedError(
            f"cluster {info.system_id} on timeline {info.timeline} answers, before it was "
            f"{known.system_id} on timeline {known.timeline}"
        )
