"""The log reader: one replication connection, reopened where the last segment ended."""

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from airflow_provider_deltaforge.errors import FatalError, RetryableError
from airflow_provider_deltaforge.events.change import ChangeBatch, Position
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.events.table_names import is_among, qualified_name
from airflow_provider_deltaforge.schemas.history import SchemaHistory
from airflow_provider_deltaforge.sources.postgres.borrowed_connection import SharedConnection
from airflow_provider_deltaforge.sources.postgres.connection import SlotInUseError, connect
from airflow_provider_deltaforge.sources.postgres.positions import WalPosition, parse_lsn
from airflow_provider_deltaforge.sources.postgres.publication import NewTables
from airflow_provider_deltaforge.sources.postgres.server import end_of_log
from airflow_provider_deltaforge.sources.postgres.wal.decode_plans import Planner, WalTablePlan
from airflow_provider_deltaforge.sources.postgres.wal.housekeeping import Housekeeping
from airflow_provider_deltaforge.sources.postgres.wal.messages import (
    LogicalMessage,
    Relation,
    appeared_table,
)
from airflow_provider_deltaforge.sources.postgres.wal.replication_connection import (
    LogSocket,
    status_message,
)
from airflow_provider_deltaforge.sources.postgres.wal.replication_session import (
    ReaderSettings,
    ask,
    start,
)
from airflow_provider_deltaforge.sources.postgres.wal.segmenter import WalSegmenter
from airflow_provider_deltaforge.sources.postgres.wal.table_names import TableNamesWatch
from airflow_provider_deltaforge.sources.postgres.wal.untouched_values import UntouchedValues
from airflow_provider_deltaforge.sources.reader_contract import AppearedTable, NamedTables
from airflow_provider_deltaforge.sources.shared.reconnecting_reader import ReconnectingReader
from airflow_provider_deltaforge.sources.shared.silence import ServerSilence
from airflow_provider_deltaforge.spec.patterns import TableMatcher

log = logging.getLogger(__name__)

_IDLE_S = 0.5
_ANSWER_S = 0.1
_CONFIRM_S = 1.0
_STATUS_S = 10.0
_KEEPALIVE_SLACK_S = 1.0


class _StatusReports:
    """Reports to the server how far the log came, and up to where it may be forgotten.

    Args:
        confirmed: what the slot has confirmed, which is never taken back.
        every_s: how often a report is due.

    Attributes:
        flushed: up to where everything is stored.
    """

    def __init__(self, confirmed: int, every_s: float) -> None:
        self.flushed = self._sent_flushed = confirmed
        self._every_s = every_s
        self._sent_at = 0.0

    def connected(self) -> None:
        """Wait with the next report: opening the log was one."""
        self._sent_at = time.monotonic()

    def send(self, socket: LogSocket, written: int, now: float, *, asked: bool) -> bool:
        """Send a report if it is time for one; return whether it was.

        Args:
            socket: to the server.
            written: how far the log came.
            now: the monotonic clock.
            asked: the server waits for it.
        """
        since = now - self._sent_at
        flushed = self.flushed
        # A server that stops asks again at once until everything is confirmed.
        asked = asked and (flushed > self._sent_flushed or since >= _ANSWER_S)
        due = since >= self._every_s
        if not (asked or due or (flushed > self._sent_flushed and since > _CONFIRM_S)):
            return False
        socket.send(status_message(written, flushed, ask=due))
        self._sent_at, self._sent_flushed = now, flushed
        return True

    def send_last(self, socket: LogSocket, written: int) -> None:
        """Send what was not reported yet, before the connection is closed."""
        if self.flushed > self._sent_flushed:
            socket.send(status_message(written, self.flushed, ask=False))


class _CapturedTables:
    """Makes the decode plans of captured tables.

    Args:
        planner: makes plans of relations.
        matcher: which tables are captured.
        history: what was registered.
        here: returns where the transaction that is read commits.

    Attributes:
        left_out: full names of tables whose rows are not delivered.
    """

    def __init__(
        self,
        planner: Planner,
        matcher: TableMatcher,
        history: SchemaHistory | None,
        here: Callable[[], WalPosition],
    ) -> None:
        self._planner = planner
        self._matcher = matcher
        self._history = history
        self._here = here
        self.left_out: frozenset[str] = frozenset()

    def plan(self, relation: Relation) -> WalTablePlan | None:
        """Return how to decode a table's rows, None if they are not delivered."""
        captured = self._matcher.matches(relation.schema, relation.table)
        if not captured or is_among(self.left_out, relation.schema, relation.table):
            return None
        plan = self._planner.plan(relation)
        if not plan.captured:
            return None
        return replace(plan, schema=registered_schema(plan.schema, self._history, self._here()))


class _AppearedTables:
    """Collects the tables that came under a captured name, with rows, while the log was read.

    Args:
        watch: looks for them, now and then.
        names: finds those with new names, and those that others published.

    Attributes:
        named: which table has which name, as far as ``found`` covers it.
        found: so far.
    """

    def __init__(self, watch: Housekeeping, names: TableNamesWatch) -> None:
        self._watch = watch
        self._names = names
        self.named: NamedTables | None = None
        self.found: list[AppearedTable] = []

    def note_names(self, names: NamedTables) -> None:
        """Set which table had which name before."""
        self.named = self._names.known = names

    def add(self, schema: str, table: str, position: Position | None) -> None:
        """Add a table with rows from before a position; None: from before it was found."""
        appeared = AppearedTable(qualified_name(schema, table), position)
        self._names.note_announced((appeared.table,))
        if appeared not in self.found:
            self.found.append(appeared)

    def look(self, now: float, position: WalPosition) -> None:
        """Look for tables if it is time to, on the server of a position."""
        for table in self._watch.look(now):
            self.add(table.schema, table.name, None)
        while self._watch.renamed:
            name, former, end = self._watch.renamed.pop()
            place = replace(position, lsn=end).as_json()
            self.found.append(AppearedTable(name, place, former))
        self.named = self._names.known

    def close(self) -> None:
        """Close the connection."""
        self._watch.close()


class PostgresReader(ReconnectingReader[LogSocket]):
    """Implements ``sources.contract.LogReader`` for PostgreSQL.

    The server is answered from ``read``. A pipeline that is blocked for longer than the server's
    ``wal_sender_timeout`` therefore loses its connection, and opens another one when it goes on:
    a server that is to be stopped would otherwise wait for us.
    """

    sign_of_life = "keepalive"

    def __init__(
        self,
        reading: ReaderSettings,
        position: WalPosition,
        stopping: Callable[[], bool],
        history: SchemaHistory | None = None,
    ) -> None:
        super().__init__(reading.source_id, reading.read_timeout_s, stopping)
        self._reading = reading
        self._in_use_since: float | None = None
        self._cut_at = 0.0
        self._info, slot = ask(reading, position)
        self._silence = ServerSilence(1.5 * self._status_s + _KEEPALIVE_SLACK_S)
        # A reader that vanished holds the slot until the server misses it.
        self._patience_s = max(reading.tuning.in_use_s, 1.5 * self._info.sender_timeout_s)
        self._status = _StatusReports(slot.confirmed, self._status_s)
        reading.prefixes.check(self._info.version)
        position = self._info.at(position.lsn)  # Known to be in this server's history.
        connection = partial(connect, reading.dsn)
        self._catalog = SharedConnection(connection)
        self._untouched = UntouchedValues(connection, self._copied_upto(), self._has_ended)
        planner = Planner(
            self._info.db,
            reading.matcher,
            self._catalog,
            reading.publication,
            decimal_numbers=reading.decimal_numbers,
        )
        self._tables = _CapturedTables(
            planner, reading.matcher, history, lambda: self._segmenter.here
        )
        schema_of = reading.prefixes.schema_of
        self._segmenter = WalSegmenter(
            self._info.db,
            position,
            self._tables.plan,
            schema_of,
            self._take_note,
            reading.tuning,
            self._info.encoding,
        )
        names = TableNamesWatch(reading.publication, self._info, reading.matcher)
        watched = None if reading.original is not None else names
        watch = Housekeeping(
            connection,
            self._newcomers(),
            reading.heartbeat_s,
            watched,
            reading.tuning.look_s,
        )
        self._appeared = _AppearedTables(watch, names)

    def skip_tables(self, tables: Collection[str]) -> None:
        """Do not deliver rows of some tables, by full name; call it before the first read."""
        self._tables.left_out = frozenset(tables)

    def decode(self, segment: Any) -> ChangeBatch:
        """Decode a segment that this reader read."""
        from airflow_provider_deltaforge.sources.postgres.wal.decoder import decode_segment

        return decode_segment(self._untouched.complete(segment), self._key)

    def acknowledge(self, position: Position) -> None:
        """Set up to where ``read`` confirms the log to the server, which may then forget it."""
        self._status.flushed = max(self._status.flushed, parse_lsn(str(position["lsn"])))

    def appeared_tables(self) -> Sequence[AppearedTable]:
        """Return tables that were published while the log was read, with rows from before."""
        return tuple(self._appeared.found)

    def note_table_names(self, names: NamedTables) -> None:
        """Set which table had which name before; call it before the first read."""
        self._appeared.note_names(names)

    def named_tables(self) -> NamedTables | None:
        """Return which table has which name, as far as ``appeared_tables`` covers it."""
        return self._appeared.named

    def close(self) -> None:
        """Close the connections. Safe to call twice, and from another thread."""
        super().close()
        self._appeared.close()
        self._catalog.close()
        self._untouched.close()

    def _leave(self, socket: LogSocket) -> None:
        try:
            self._status.send_last(socket, self._segmenter.written)
        except (OSError, RetryableError):
            log.debug("the last position did not reach the server")

    def _copied_upto(self) -> int:
        """Return behind which place no row was written before a copy of the tables ended."""
        if self._reading.original is not None:
            return 0
        with self._catalog() as connection:
            return end_of_log(connection)

    def _has_ended(self) -> bool:
        return self._closed or self._stopping()

    def _connect_log(self) -> LogSocket:
        position = self._segmenter.position
        info, _ = ask(self._reading, position, self._info)
        self._status.connected()
        return start(self._reading, position, info)

    def _waits(self) -> bool:
        """Return whether the reader before us has gone, which the server will soon notice."""
        since = self._in_use_since
        return since is not None and time.monotonic() - since < self._reading.tuning.leaving_s

    def _receive(self, socket: LogSocket, timeout_s: float) -> int:
        segmenter = self._segmenter
        self._answer(socket)
        view = segmenter.room()
        if segmenter.ready:
            return 1
        soon_s = _ANSWER_S if segmenter.asked else _IDLE_S if segmenter.moved else timeout_s
        size = socket.receive(view, min(timeout_s, soon_s))
        self._heard(size)
        now = time.monotonic()
        if size:
            self._in_use_since = None
            segmenter.take(size)
            # The room was not filled: the server has nothing more to send just now.
            if size < len(view):
                segmenter.cut()
        if segmenter.ready:
            self._cut_at = now
        elif segmenter.moved and (segmenter.asked or now - self._cut_at >= _IDLE_S):
            segmenter.cut_idle()
            self._cut_at = now
        return size

    def _answer(self, socket: LogSocket) -> None:
        """Send the server our position, when it asks and from time to time; do the housekeeping."""
        now = time.monotonic()
        segmenter = self._segmenter
        if self._status.send(socket, segmenter.written, now, asked=segmenter.asked):
            segmenter.asked = False
        self._appeared.look(now, segmenter.position)

    @property
    def _missing(self) -> str:
        return f"no keepalive, which it is asked for every {self._status_s:g} s"

    @property
    def _status_s(self) -> float:
        most = self._info.sender_timeout_s / 2 or _STATUS_S
        return min(_STATUS_S, most, self._reading.read_timeout_s / 3)

    def _failed(self, error: BaseException) -> None:
        """Note a failed attempt, and wait longer before each next one."""
        if isinstance(error, SlotInUseError):
            now = time.monotonic()
            self._in_use_since = self._in_use_since or now
            if now - self._in_use_since > self._patience_s:
                raise FatalError(
                    f"{error} for {self._patience_s:g} s. Give each pipeline a slot of its own, "
                    "or end the other reader: SELECT pg_terminate_backend(active_pid) FROM "
                    f"pg_replication_slots WHERE slot_name = '{self._reading.slot}'"
                ) from error
        super()._failed(error)

    def _take_note(self, message: LogicalMessage) -> None:
        table = appeared_table(message, self._reading.publication)
        if table is not None and self._reading.matcher.matches(*table):
            commit = self._segmenter.here
            # The message belongs to a transaction, which ends behind where its commit begins.
            self._appeared.add(*table, replace(commit, lsn=commit.lsn + 1).as_json())

    def _newcomers(self) -> NewTables | None:
        reading = self._reading
        if reading.newcomers is None:
            return None
        return NewTables(
            reading.publication, reading.matcher, self._info.version, add=reading.newcomers
        )


def registered_schema(
    made: TableSchema, history: SchemaHistory | None, commit: WalPosition
) -> TableSchema:
    """Return the schema that a table's rows have.

    The log describes columns and key, the catalog adds defaults, NOT NULL and identity, as they
    are now. Rows that are read again must have the schema they had before, so the registered one
    counts as long as it is alike in all that the log knows. A change of the other attributes alone
    is registered with the next change that the log shows, the next copy, or a reload.

    Args:
        made: of the log's description and the catalog of now.
        history: what was registered; None without a state store.
        commit: where the rows' transaction commits.
    """
    if history is None:
        return made
    known = history.schema_at(made.db, made.schema, made.table, commit.as_json())
    return known if known is not None and _in_log(known) == _in_log(made) else made


def _in_log(schema: TableSchema) -> TableSchema:
    """Return what the log itself knows of a table."""
    columns = tuple(
        replace(
            column,
            nullable=True,
            default_value=None,
            is_identity=False,
            identity_generation=None,
            is_generated=False,
        )
        for column in schema.columns
    )
    return replace(schema, columns=columns)
