"""Finds the exact cut of a view that opened while others committed, by comparing its rows.

Such a view contains everything that was executed before it opened, and nothing that lies behind
the log's end after it opened. Whether it contains a transaction in between, nobody can ask. But the
log says what each row that changes in between is like at each place there, by the images of its
changes, and the view shows what it is like in the view. The first place at which all of these rows
agree is the cut: the other rows of the table are the same at each of the places, so the view shows
the whole table just as it is at that place of the log. That does not depend on the order in which
the storage engine commits. A row that goes from A to B and back agrees at two places; behind either
of them the log goes on with what the view shows.

Nothing is found where a key is not compared exactly or there is none, where the table itself was
changed in between, where there is too much log or it may not be read, or where no place agrees, as
may be with parts of rows in the log, or with ``binlog_order_commits=OFF``.
"""

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from airflow_provider_deltaforge.errors import DeltaForgeError
from airflow_provider_deltaforge.events.change import ChangeBatch, Position
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.sources.contract import TableChunk
from airflow_provider_deltaforge.sources.mysql.binlog.dump import random_server_id
from airflow_provider_deltaforge.sources.mysql.binlog.reader import MySqlReader
from airflow_provider_deltaforge.sources.mysql.connection import MySqlServer
from airflow_provider_deltaforge.sources.mysql.gtid import GtidSet
from airflow_provider_deltaforge.sources.mysql.keys import chunk_of_keys
from airflow_provider_deltaforge.sources.mysql.positions import (
    TX_NUMBER,
    TX_ORIGIN,
    TX_START,
    TX_STOP,
    BinlogTxPositions,
    LogPosition,
    file_number,
)
from airflow_provider_deltaforge.sources.mysql.snapshot.key_ranges import has_exact_key, select_rows
from airflow_provider_deltaforge.sources.mysql.snapshot.text_rows_kernel import RowShape
from airflow_provider_deltaforge.sources.mysql.snapshot.text_stream import TABLE_CHANGED, TextResult
from airflow_provider_deltaforge.sources.shared.table_snapshotter import View
from airflow_provider_deltaforge.spec.patterns import TableMatcher

_log = logging.getLogger(__name__)

_LOG_BYTES_MAX = 16 << 20
_KEYS_MAX, _KEYS_AT_ONCE = 2000, 200
_LOG_S, _READ_S = 5.0, 0.1
_HEARTBEAT_S = 1.0
_SKIPPED_MAX = 64
_ROW_OPS = ("c", "u", "d")
_LOST_TEXT = "\ufffd"
# The view is too old, or the table or one of its columns is gone: the caller opens another.
_NOT_OURS = (TABLE_CHANGED, 1049, 1054, 1146)
_CLIENT_ERRORS = range(2000, 3000)

_Place = tuple[str, int]
"""File and offset."""


class _NotFoundError(Exception):
    """The cut cannot be found; the text says why."""


class _RowChange(NamedTuple):
    """What a change makes of one key.

    Attributes:
        key: identifies the row, see ``_identity``.
        before: the row as JSON; None: there was none.
        after: the same.
    """

    key: str
    before: bytes | None
    after: bytes | None


@dataclass(frozen=True, slots=True)
class _Transaction:
    """One of the log between two places.

    Attributes:
        origin: of its GTID.
        number: of its GTID.
        start: file and offset.
        stop: the same.
        changes: of the table's rows, in order.
        members: of the keys that it changes, by identity.
    """

    origin: str
    number: int
    start: _Place
    stop: _Place
    changes: Sequence[_RowChange]
    members: Mapping[str, Mapping[str, Any]]


class ExactCutFinder:
    """Finds exact cuts of views of one server with GTIDs.

    A server or user that does not let it is asked less and less often.

    Args:
        connect: returns a new connection to it.
        decimal_numbers: DECIMAL is a JSON number, not a string.
    """

    def __init__(self, connect: Callable[[], Any], *, decimal_numbers: bool) -> None:
        self._connect = connect
        self._decimal_numbers = decimal_numbers
        self._failures = self._skipped = 0

    def find(
        self, connection: Any, server: MySqlServer, view: View, schema: TableSchema, shape: RowShape
    ) -> View:
        """Return a view with its exact cut; as it is, if that cannot be found.

        Args:
            connection: has the view open.
            server: what it talks to.
            view: with an inexact cut.
            schema: of the table, as the view shows it.
            shape: of the same.

        Raises:
            MySQLError: of the driver, when the connection breaks, or the view is too old.
        """
        if "since" not in view.cut or not has_exact_key(schema):
            return view
        if self._skipped:
            self._skipped -= 1
            return view
        try:
            cut = self._cut(connection, server, view.cut, schema, shape)
        except (_NotFoundError, DeltaForgeError) as error:
            if not self._failures:
                text = "%s: a few changes around a view may be repeated: %s"
                _log.warning(text, schema.full_name, error)
            self._skipped = min(2**self._failures, _SKIPPED_MAX)
            self._failures += 1
            return view
        self._failures = 0
        return replace(view, cut=cut)

    def _cut(
        self,
        connection: Any,
        server: MySqlServer,
        known: Position,
        schema: TableSchema,
        shape: RowShape,
    ) -> Position:
        executed = GtidSet.parse(known["gtid_set"])
        upto = (str(known["upto"][0]), int(known["upto"][1]))
        since = (str(known["since"][0]), int(known["since"][1]))
        logged = [] if since == upto else self._transactions(server, schema, since, upto)
        are_known = [GtidSet().adding(tx.origin, tx.number, tx.number) <= executed for tx in logged]
        first = are_known.index(False) if False in are_known else len(logged)
        doubtful = logged[first:]
        # Not in front of what was executed before the view opened.
        known_places = [at for at, is_known in enumerate(are_known[first:], 1) if is_known]
        least = max(known_places, default=0)
        members = {key: found for tx in doubtful for key, found in tx.members.items()}
        rows = _rows_of(connection, schema, shape, members)
        count = _first_agreeing(doubtful, rows, least)
        for tx in doubtful[:count]:
            executed = executed.adding(tx.origin, tx.number, tx.number)
        place = doubtful[count].start if count < len(doubtful) else upto
        return LogPosition(*place, executed, server.uuid).as_json()

    def _transactions(
        self,
        server: MySqlServer,
        schema: TableSchema,
        since: _Place,
        upto: _Place,
    ) -> list[_Transaction]:
        """Return the log's transactions between two places of the server, with a table's rows."""
        deadline = time.monotonic() + _LOG_S
        names = [name.replace('"', '""') for name in (schema.db, schema.table)]
        reader = MySqlReader(
            "",
            self._connect,
            TableMatcher((f'"{names[0]}"."{names[1]}"',)),
            LogPosition(*since, None, server.uuid),
            # The server ends a dump when another begins under the same number.
            random_server_id(),
            _HEARTBEAT_S,
            _LOG_S,
            lambda: time.monotonic() > deadline,
            _SchemaOfView(schema),
            decimal_numbers=self._decimal_numbers,
        )
        found: list[_Transaction] = []
        read_bytes, end = 0, _order(upto)
        try:
            while not found or _order(found[-1].stop) < end:
                segment = reader.read(_READ_S)
                if segment is None:
                    if time.monotonic() > deadline:
                        raise _NotFoundError(f"the log up to {upto} did not come in {_LOG_S:g} s")
                    continue
                read_bytes += segment.nbytes
                if segment.open_tx or read_bytes > _LOG_BYTES_MAX:
                    raise _NotFoundError("a large transaction was committed around it")
                found += _transactions_of(reader.decode(segment), schema)
        finally:
            reader.close()
        return [tx for tx in found if _order(tx.start) < end]


@dataclass(frozen=True, slots=True)
class _SchemaOfView:
    """Knows one table, as a view shows it. Implements ``SchemaHistory``."""

    schema: TableSchema

    def schema_at(
        self, db: str, schema: str | None, table: str, position: Position
    ) -> TableSchema | None:
        """Return the schema of that table."""
        del schema, position
        return self.schema if (db, table) == (self.schema.db, self.schema.table) else None

    def goes_on(self, db: str, schema: str | None, table: str, position: Position) -> bool:
        """Return False: nothing was read before."""
        del db, schema, table, position
        return False


def _order(place: _Place) -> tuple[int, int]:
    return file_number(place[0]), place[1]


def _transactions_of(batch: ChangeBatch, schema: TableSchema) -> Iterator[_Transaction]:
    """Yield the transactions of a batch with the changes of a table's rows.

    Raises:
        _NotFoundError: the batch holds anything but rows, or a transaction without a GTID.
    """
    positions = batch.positions
    if not isinstance(positions, BinlogTxPositions) or batch.continues:
        raise _NotFoundError("a large transaction was committed around it")
    columns = batch.rows.select(["op", "before", "after", "key", "tx"]).to_pylist()
    rows: dict[int, list[Mapping[str, Any]]] = {}
    for row in columns:
        if row["op"] not in _ROW_OPS or row["key"] is None:
            raise _NotFoundError("a statement that changes a table was executed around it")
        rows.setdefault(row["tx"], []).append(row)
    for at, tx in enumerate(positions.transactions):
        origin = int(tx[TX_ORIGIN])
        if origin < 0:
            raise _NotFoundError("a transaction around it has no GTID")
        changes: list[_RowChange] = []
        members: dict[str, Mapping[str, Any]] = {}
        for row in rows.get(at, ()):
            changes += _changes_of(row, schema.primary_key, members)
        yield _Transaction(
            positions.origins[origin],
            int(tx[TX_NUMBER]),
            (positions.file, int(tx[TX_START])),
            (positions.file, int(tx[TX_STOP])),
            changes,
            members,
        )


def _changes_of(
    row: Mapping[str, Any], key_columns: Sequence[str], members: dict[str, Mapping[str, Any]]
) -> Iterator[_RowChange]:
    """Yield what a change makes of its row; of one whose key it changes, of both keys."""
    key = _members(row["key"], key_columns)
    former = key if row["op"] != "u" else _members(row["before"], key_columns)
    name, former_name = _identity(key), _identity(former)
    members |= {former_name: former, name: key}
    if name == former_name:
        yield _RowChange(name, row["before"], row["after"])
    else:
        yield _RowChange(former_name, row["before"], None)
        yield _RowChange(name, None, row["after"])


def _members(text: bytes, key_columns: Sequence[str]) -> Mapping[str, Any]:
    """Return the values of a key in JSON; numbers with a fraction as texts."""
    if _LOST_TEXT.encode() in text:
        raise _NotFoundError("a row that changed around it holds what is no text")
    row = json.loads(text, parse_float=str, parse_constant=str)
    try:
        return {name: row[name] for name in key_columns}
    except KeyError as error:
        raise _NotFoundError("the log holds parts of rows") from error


def _identity(members: Mapping[str, Any]) -> str:
    return json.dumps(list(members.values()), sort_keys=True)


def _rows_of(
    connection: Any,
    schema: TableSchema,
    shape: RowShape,
    members: Mapping[str, Mapping[str, Any]],
) -> Mapping[str, bytes]:
    """Return the rows with certain keys that the view on a connection shows, by identity."""
    import pymysql

    if len(members) > _KEYS_MAX:
        raise _NotFoundError(f"more than {_KEYS_MAX} of the table's rows changed around it")
    found: dict[str, bytes] = {}
    wanted = list(members.values())
    whole = TableChunk("", schema.db, None, schema.table, {}, 0)
    for first in range(0, len(wanted), _KEYS_AT_ONCE):
        some = wanted[first : first + _KEYS_AT_ONCE]
        chunk = chunk_of_keys(whole, schema, some)
        if chunk.rows_estimate < len(some):
            raise _NotFoundError("a row that changed around it cannot be read by its key")
        try:
            parts = [
                *TextResult(connection, select_rows(schema, chunk, shape.select), shape).parts()
            ]
        except pymysql.err.MySQLError as error:
            if error.args[0] in _NOT_OURS or error.args[0] in _CLIENT_ERRORS:
                raise
            raise _NotFoundError(f"rows cannot be read by their keys: {error.args[-1]}") from error
        for part in parts:
            keys = [] if part.key is None else part.key.to_pylist()
            for key, row in zip(keys, part.after.to_pylist(), strict=True):
                found[_identity(_members(key, schema.primary_key))] = row
    return found


def _first_agreeing(
    transactions: Sequence[_Transaction], rows: Mapping[str, bytes], least: int
) -> int:
    """Return behind how many transactions, at least, rows are as a view shows them.

    Args:
        transactions: in the log's order.
        rows: of the view, those that they change.
        least: so many are contained for certain.

    Raises:
        _NotFoundError: they are so nowhere.
    """
    states: dict[str, bytes | None] = {}
    for tx in transactions:
        for change in tx.changes:
            states.setdefault(change.key, change.before)
    different = {key for key, state in states.items() if state != rows.get(key)}
    for count in range(len(transactions) + 1):
        if count:
            for key, _, after in transactions[count - 1].changes:
                (different.discard if after == rows.get(key) else different.add)(key)
        if count >= least and not different:
            return count
    raise _NotFoundError("its rows are as the log has them nowhere")
