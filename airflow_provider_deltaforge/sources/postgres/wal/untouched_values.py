"""Large values that the log leaves out of a row whose key changed: they are read from the table.

An update does not log a value that is stored out of line and that it left alone. Whoever follows
the row has it from its copy. But a key that changes while the tables are copied can move a row from
a chunk not yet read to one that was: no chunk has it then, and nobody its large values. Copies are
made while no log is read. So it concerns what was written before the reader was opened, and only
there are values read.

What is read is the row as it is now, under its new key. If the value changed since, the log tells
that later; if the row has gone or moved on, so do the events that follow, and this one stays as it
was logged. So the row's last delivery is its last state, whatever happened meanwhile.
"""

import logging
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.sources.postgres.borrowed_connection import SharedConnection
from airflow_provider_deltaforge.sources.postgres.connection import translated
from airflow_provider_deltaforge.sources.postgres.server import end_of_log
from airflow_provider_deltaforge.sources.postgres.tables import (
    KeyColumn,
    literal,
    quote,
    table_named,
)
from airflow_provider_deltaforge.sources.postgres.wal.decode_plans import WalTablePlan
from airflow_provider_deltaforge.sources.postgres.wal.log_segment import (
    ROW_KIND,
    ROW_PLAN,
    ROW_START,
    ROW_STOP,
    ROW_TX,
    UPDATE,
    WalSegment,
)
from airflow_provider_deltaforge.sources.shared.backoff import Backoff

_log = logging.getLogger(__name__)

_OLD_KEY, _NULL, _UNCHANGED, _TEXT = b"K", b"n", b"u", b"t"
# A commit is in the log before others see its rows; until they do, it holds a lock on its number.
_INVISIBLE = """
SELECT FROM pg_locks WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock' AND granted
                       AND transactionid = %s::text::xid
"""
# As a copy has them: a parent's own rows, but all of a partitioned table's. What bears the name of
# the row's table or of a column now may be another: nothing is read if it is younger than the row,
# or if it only looks it, as one can that is older by all the numbers that transactions have.
_OWN_ROWS = """
{table}::regclass = {oid} AND (tableoid = {oid} OR EXISTS (
   SELECT FROM pg_partitioned_table WHERE partrelid = {oid})) AND NOT EXISTS (
   SELECT FROM pg_attribute WHERE attrelid = {oid} AND attname IN ({names})
      AND age(xmin) BETWEEN 0 AND age('{xid}'::xid))
"""
# Dropped or renamed since, or not ours to read; or of a type that the key's text does not fit, or
# that a text cannot be compared with.
_GONE, _DENIED = ("42", "22", "0A"), "42501"
_BUILT_IN_UPTO = 16_383
"""Greatest number of a type that the server brings along."""

Result = TypeVar("Result")
Value = tuple[bytes, bytes]
"""The letter of a value in a tuple, and its text."""


class UntouchedValues:
    """Completes rows whose key changed. Used by the decoder's thread.

    Args:
        connect: opens a connection; nothing is opened before it is needed.
        upto: the log's end when the reader was opened; rows behind it stay as they are logged.
        ended: whether nobody waits for an answer any more.
    """

    def __init__(self, connect: Callable[[], Any], upto: int, ended: Callable[[], bool]) -> None:
        self._upto = upto
        self._kept = SharedConnection(connect)
        self._ended = ended
        self._warned: set[str] = set()
        self._keys: dict[int, Mapping[str, KeyColumn]] = {}
        self._visible = 0
        self._asked = False

    def complete(self, segment: WalSegment) -> WalSegment:
        """Return the segment with what can be found of the values that its rows lack.

        Raises:
            RetryableError: it ended while the server was away.
        """
        rows = segment.rows
        if not len(rows) or self._is_behind(int(segment.positions.commits[rows[0, ROW_TX]])):
            return segment
        updates = np.flatnonzero(rows[:, ROW_KIND] == UPDATE)
        moved = updates[segment.data[rows[updates, ROW_START]] == ord(_OLD_KEY)]
        pieces: list[Any] = [segment.data]
        size = len(segment.data)
        rows = rows.copy() if len(moved) else rows
        for index in moved.tolist():
            row = rows[index].tolist()
            message = segment.data[row[ROW_START] : row[ROW_STOP]].tobytes()
            plan, xid = segment.plans.plans[row[ROW_PLAN]], segment.positions.xids[row[ROW_TX]]
            if self._is_behind(int(segment.positions.commits[row[ROW_TX]])):
                break
            whole = self._whole(message, plan, int(xid))
            if whole is not None:
                rows[index, [ROW_START, ROW_STOP]] = size, size + len(whole)
                pieces.append(np.frombuffer(whole, np.uint8))
                size += len(whole)
        if len(pieces) == 1:
            return segment
        return replace(segment, data=np.concatenate(pieces), rows=rows)

    def close(self) -> None:
        """Close the connection."""
        self._kept.close()

    def _is_behind(self, commit: int) -> bool:
        """Return whether no transaction from this one on can lack values that no copy has.

        A row may have moved on until it was asked for: those moves lack the same values.
        """
        if commit > self._upto and self._asked:
            self._upto = max(self._upto, self._retry_until_found(end_of_log))
            self._asked = False
        return commit > self._upto

    def _whole(self, message: bytes, plan: WalTablePlan, xid: int) -> bytes | None:
        """Return an update's tuples with the values that the new one lacks; None if it has all."""
        count = len(plan.chains)
        if not plan.key:
            return None  # The log lacks a part of it, which other rows have as well.
        try:
            old, at = _read(message, 1, count)
            new, _ = _read(message, at + 1, count)
        except (struct.error, IndexError):
            return None  # The decoder says what is wrong with it.
        known = [was if now[0] == _UNCHANGED else now for was, now in zip(old, new, strict=True)]
        keys = [i for i in range(count) if plan.identity[i]]
        lacks = [i for i in range(count) if new[i][0] == _UNCHANGED and not plan.identity[i]]
        if not lacks or all(known[i] == old[i] for i in keys):
            return None
        key = {i: known[i][1].decode() for i in keys}
        found = self._retry_until_found(
            lambda connection: self._found(connection, plan, key, lacks, xid)
        )
        if found is None:
            return None
        for i, value in zip(lacks, found, strict=True):
            new[i] = (_NULL, b"") if value is None else (_TEXT, value)
        return message[: at + 1] + struct.pack("!H", count) + b"".join(map(_written, new))

    def _retry_until_found(self, ask: Callable[[Any], Result]) -> Result:
        backoff = Backoff()
        while not self._ended():
            if backoff.naps(1.0):
                continue
            try:
                return ask(self._kept())
            except RetryableError as error:
                _log.warning("reading large values that the log leaves out: %s", error)
                backoff.failed()
        raise RetryableError("ended before the large values of a row were read")

    def _found(
        self,
        connection: Any,
        plan: WalTablePlan,
        key: dict[int, str],
        lacks: Sequence[int],
        xid: int,
    ) -> list[bytes | None] | None:
        """Return the values as the server prints them; None if there is no such row now."""
        import psycopg

        columns, table = plan.schema.columns, plan.schema.full_name
        names = [quote(columns[i].name) for i in lacks]
        wanted = ", ".join([*names, *(f"pg_typeof({name})::oid::int8" for name in names)])
        source = quote(plan.schema.schema or "public", plan.schema.table)
        own = _OWN_ROWS.format(
            table=literal(source),
            oid=plan.oid,
            names=", ".join(literal(columns[i].name) for i in (*key, *lacks)),
            xid=xid,
        )
        try:
            if xid != self._visible and connection.execute(_INVISIBLE, (str(xid),)).rowcount:
                raise RetryableError(f"transaction {xid} is committed, but not yet visible")
            self._visible, self._asked = xid, True
            held = self._held(connection, plan, key)
            # Without parameters, for the driver would look for their places in the names, too.
            sql = f"SELECT {wanted} FROM {source} WHERE {held} AND {own} LIMIT 2"
            result = connection.execute(sql).pgresult
        except psycopg.Error as error:
            if not (error.sqlstate or "").startswith(_GONE):
                raise translated(error, "asking the server") from error
            if table not in self._warned:
                self._warned.add(table)
                # Its text may quote a key.
                _log.warning(
                    "%s: large values of rows whose key changed cannot be read (error %s); they "
                    'arrive as {"_unchanged": true}. %sopy the table again to have them',
                    table,
                    error.sqlstate,
                    "Grant SELECT on it, and c" if error.sqlstate == _DENIED else "C",
                )
            return None
        if result.ntuples != 1:
            return None
        row = [result.get_value(0, place) for place in range(2 * len(lacks))]
        types = [str(columns[i].type_oid).encode() for i in lacks]
        return row[: len(lacks)] if row[len(lacks) :] == types else None

    def _held(self, connection: Any, plan: WalTablePlan, key: Mapping[int, str]) -> str:
        """Return the condition that a row has a key.

        The operators of a type that an extension brought are not in the path, and have schemas.
        """
        columns = [plan.schema.columns[i] for i in key]
        if plan.oid not in self._keys:
            facts = None
            if any((column.type_oid or 0) > _BUILT_IN_UPTO for column in columns):
                facts = table_named(connection, plan.schema.schema or "public", plan.schema.table)
            self._keys[plan.oid] = {each.name: each for each in facts.key} if facts else {}
        conditions = []
        for column, text in zip(columns, key.values(), strict=True):
            known = self._keys[plan.oid].get(column.name)
            equal = known.operators[1] if known and known.operators else "="
            cast = f"::{known.cast}" if known and known.cast else ""
            conditions.append(f"{quote(column.name)} {equal} {literal(text)}{cast}")
        return " AND ".join(conditions)


def _read(message: bytes, at: int, count: int) -> tuple[list[Value], int]:
    """Return the values of a tuple, and where it ends."""
    if struct.unpack_from("!H", message, at) != (count,):
        raise IndexError
    at += 2
    values = []
    for _ in range(count):
        letter, at = message[at : at + 1], at + 1
        text = b""
        if letter == _TEXT:
            (size,) = struct.unpack_from("!I", message, at)
            text, at = message[at + 4 : at + 4 + size], at + 4 + size
        values.append((letter, text))
    return values, at


def _written(value: Value) -> bytes:
    letter, text = value
    return letter + struct.pack("!I", len(text)) + text if letter == _TEXT else letter
