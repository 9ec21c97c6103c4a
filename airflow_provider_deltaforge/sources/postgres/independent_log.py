"""The log as the server's own plug-in ``test_decoding`` prints it: a second opinion.

A server decodes only what a slot holds, from where that slot stands. So this reads from a copy of
the pipeline's slot, as our own second readers do. The copy is temporary: the server drops it with
the session, also when we are killed, and until then it keeps no more log than the original. A
session whose client vanished without a word ends after a minute.
"""

import json
import re
import secrets
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from airflow_provider_deltaforge.errors import PositionLostError, RetryableError, SpecError
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.events.table_names import qualified_name
from airflow_provider_deltaforge.sources.postgres.positions import (
    WalPosition,
    lsn_text,
    parse_lsn,
)
from airflow_provider_deltaforge.sources.postgres.server import read_head, row_of, rows_of
from airflow_provider_deltaforge.sources.postgres.slots import ReplicationSlot, find_slot
from airflow_provider_deltaforge.sources.shared.independent_change import (
    UNKNOWN_VALUE,
    IndependentChange,
)

if TYPE_CHECKING:
    from airflow_provider_deltaforge.sources.postgres.source import PostgresSource

_DOING = "reading the log with test_decoding"
_PLUGIN = "test_decoding"
_LSN = re.compile(r"[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}")
_AT_ONCE = 500

# How values are printed, and how long a session whose client is gone keeps the copy.
_SESSION = (
    "SET TimeZone = 'UTC'",
    "SET DateStyle = 'ISO, YMD'",
    "SET IntervalStyle = 'postgres'",
    "SET bytea_output = 'hex'",
    "SET extra_float_digits = 1",
    "SET lc_monetary = 'C'",
    "SET tcp_keepalives_idle = 15",
    "SET tcp_keepalives_interval = 5",
    "SET tcp_keepalives_count = 3",
    "SET tcp_user_timeout = 30000",
    "SET idle_in_transaction_session_timeout = '60s'",
)
_COPY = "SELECT pg_copy_logical_replication_slot(%s, %s, true, %s)"
_GET = """
SELECT xid::text, data FROM pg_logical_slot_get_changes(
    %s, %s, %s, 'skip-empty-xacts', '1')
"""
_ADVANCE = "SELECT pg_replication_slot_advance(%s, %s)"
_DOMAINS = """
SELECT format_type(d.oid, NULL), format_type(d.typbasetype, d.typtypmod)
  FROM pg_type d WHERE d.typtype = 'd'
"""
_ROOTS = """
SELECT n.nspname, c.relname, rn.nspname, r.relname
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_class r ON r.oid = pg_partition_root(c.oid)
  JOIN pg_namespace rn ON rn.oid = r.relnamespace
 WHERE c.relispartition
   AND (SELECT pubviaroot FROM pg_publication WHERE pubname = %s)
"""

_UNPUBLISHED = """
SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p')
EXCEPT SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %s
"""

_NAME = r'"(?:[^"]|"")+"|[^\s".\[\]:]+'
_ROW = re.compile(rf"table ({_NAME})\.({_NAME}): (INSERT|UPDATE|DELETE): (.*)", re.DOTALL)
_TRUNCATE = re.compile(r"table (.+): TRUNCATE: .*", re.DOTALL)
_VALUE = re.compile(
    rf"""\s*({_NAME})                                  # the column's name
        \[((?:[^\[\]"]|\[\]|"(?:[^"]|"")+")+)\]:       # its type
        (null|unchanged-toast-datum|B?'(?:[^']|'')*'|[^\s']+)""",
    re.DOTALL | re.VERBOSE,
)
_READ_S, _SILENT_S = 0.2, 30.0
_NOT_KEPT = (
    "a server sends nothing of what a slot was confirmed for. Choose a later place, or copy the "
    "tables instead: deltaforge snapshot FILE --again"
)
_OPS = {"INSERT": "c", "UPDATE": "u", "DELETE": "d"}


def log_position(source: "PostgresSource", text: str) -> tuple[Position, Position]:
    """Return the place that a person writes, and where the slot stands: nothing before is sent.

    Raises:
        SpecError: it is neither an LSN nor a position as `deltaforge status` shows it.
        PositionLostError: there is no slot to read from.
    """
    with closing(source.connect()) as connection:
        head = read_head(connection)
        begin = WalPosition(_slot(source, connection).confirmed, head.system_id, head.timeline)
    place = _place(text, head)
    if place.lsn < begin.lsn:
        raise PositionLostError(
            f"--at: the slot holds the log behind {lsn_text(begin.lsn)}, and a server decodes only "
            f"what a slot holds: {lsn_text(place.lsn)} cannot be read any more"
        )
    return place.as_json(), begin.as_json()


def place_at(source: "PostgresSource", text: str) -> Position:
    """Return the place that a person writes, if the slot still holds what lies behind it.

    Raises:
        SpecError: it is neither an LSN nor a position as `deltaforge status` shows it.
        PositionLostError: the slot has moved beyond it, or there is none.
    """
    with closing(source.connect()) as connection:
        head = read_head(connection)
        confirmed = _slot(source, connection).confirmed
    place = _place(text, head, "to")
    if place.lsn < confirmed:
        raise PositionLostError(
            f"the slot holds the log behind {lsn_text(confirmed)}, and {lsn_text(place.lsn)} lies "
            f"before that: {_NOT_KEPT}"
        )
    return place.as_json()


def place_at_time(source: "PostgresSource", at_ms: int) -> Position:
    """Return the last place such that all behind it was committed later, of what the slot holds.

    Raises:
        PositionLostError: what was committed around that time is not in the slot any more.
        RetryableError: the server sends nothing.
    """
    with closing(source.connect()) as connection:
        head = read_head(connection)
        begin = WalPosition(_slot(source, connection).confirmed, head.system_id, head.timeline)
    at, has_earlier = begin.as_json(), False
    until = time.monotonic() + _SILENT_S
    with closing(source.behind("rewind").open(at)) as reader:
        while not source.covers(at, head.as_json()):
            segment = reader.read(_READ_S)
            if segment is None:
                if time.monotonic() > until:
                    raise RetryableError(f"the server sends nothing of its log behind {at}")
                continue
            until = time.monotonic() + _SILENT_S
            batch = reader.decode(segment)
            found: Any = batch.positions
            later = np.flatnonzero(np.asarray(found.times_ms) > at_ms)
            if len(later):
                first = int(later[0])
                if not (has_earlier or first):
                    first_at = f"the first change was committed at {_shown(found.times_ms[0])} UTC"
                    raise _time_lost(begin, first_at)
                return batch.positions.after(first - 1) if first else at
            has_earlier = has_earlier or len(found) > 0
            at = batch.end
    if not has_earlier:
        raise _time_lost(begin, "there is no change, and changes before that are of unknown time")
    return at


def _time_lost(begin: WalPosition, what: str) -> PositionLostError:
    return PositionLostError(
        f"the slot holds the log behind {lsn_text(begin.lsn)}, where {what}: {_NOT_KEPT}"
    )


def _shown(at_ms: float) -> str:
    at = datetime.fromtimestamp(at_ms / 1000, timezone.utc)
    return at.strftime("%Y-%m-%d %H:%M:%S")


def _place(text: str, head: WalPosition, option: str = "--at") -> WalPosition:
    if text.startswith("{"):
        try:
            return WalPosition.from_json(json.loads(text))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise SpecError(f"{option}: {text!r} is no position of a PostgreSQL log") from error
    if not _LSN.fullmatch(text):
        raise SpecError(
            f"{option}: {text!r} is no place of this server's log; write an LSN (0/1A2B3C4D), or "
            "the position that `deltaforge status NAME` shows"
        )
    return WalPosition(parse_lsn(text), head.system_id, head.timeline)


def independent_changes(
    source: "PostgresSource", after: Position, upto: Position
) -> Iterator[IndependentChange]:
    """Yield what the server prints of captured tables between two positions.

    Raises:
        PositionLostError: there is no slot to read from.
        AccessError, FatalError: the server lets us make no copy of it, or has no ``test_decoding``.
    """
    begin, end = WalPosition.from_json(after).lsn, WalPosition.from_json(upto).lsn
    with closing(source.connect()) as connection:
        for statement in _SESSION:
            rows_of(connection, statement, _DOING)
        printed = _Printed.of(source, connection)
        original = _slot(source, connection)
        copy = f"{original.name[:50]}_{secrets.token_hex(4)}"
        row_of(connection, _COPY, _DOING, (original.name, copy, _PLUGIN))
        if begin > original.confirmed:
            row_of(connection, _ADVANCE, _DOING, (copy, lsn_text(begin)))
        while rows := rows_of(connection, _GET, _DOING, (copy, lsn_text(end), _AT_ONCE)):
            for xid, text in rows:
                # A message that is logged outside of any transaction has number 0.
                yield from printed.changes("" if xid == "0" else xid, text)


def _slot(source: "PostgresSource", connection: Any) -> ReplicationSlot:
    name = source.slot_settings.name
    slot = find_slot(connection, name)
    if slot is None:
        raise PositionLostError(
            f"replication slot {name!r} does not exist: a server decodes only what a slot has kept "
            "since; it is made by the pipeline's first start"
        )
    return slot


@dataclass(frozen=True, slots=True)
class _Printed:
    """Reads lines of ``test_decoding``.

    Attributes:
        is_captured: decides by schema and table.
        roots: partition to its root, where the publication sends rows under the root's name.
        domains: base type by name.
        decimal_numbers: ``numeric`` is a number in events.
    """

    is_captured: Callable[[str, str], bool]
    roots: Mapping[tuple[str, str], tuple[str, str]]
    domains: Mapping[str, str]
    decimal_numbers: bool

    @classmethod
    def of(cls, source: "PostgresSource", connection: Any) -> "_Printed":
        """Ask the server what is needed to read them."""
        publication = source.publication_settings.name
        roots = rows_of(connection, _ROOTS, _DOING, (publication,))
        unpublished = {
            tuple(row) for row in rows_of(connection, _UNPUBLISHED, _DOING, (publication,))
        }
        matches = source.matcher.matches
        return cls(
            is_captured=lambda *name: name not in unpublished and matches(*name),
            roots={(row[0], row[1]): (row[2], row[3]) for row in roots},
            domains=dict(rows_of(connection, _DOMAINS, _DOING)),
            decimal_numbers=source.decimal == "number",
        )

    def changes(self, xid: str, text: str) -> Iterator[IndependentChange]:
        """Yield what one line says of captured tables."""
        if found := _ROW.fullmatch(text):
            schema, table = self._root(_unquoted(found[1]), _unquoted(found[2]))
            if self.is_captured(schema, table):
                name = qualified_name(schema, table)
                yield self._row(xid, name, _OPS[found[3]], found[4])
        elif found := _TRUNCATE.fullmatch(text):
            names = [part.split(".") for part in found[1].split(", ")]
            tables = [self._root(*map(_unquoted, part)) for part in names if len(part) == 2]
            for schema, table in dict.fromkeys(tables):
                if self.is_captured(schema, table):
                    yield IndependentChange(xid, qualified_name(schema, table), "t")
        elif text.startswith("message: "):
            yield IndependentChange(xid, "", "message", text=text)

    def _root(self, schema: str, table: str) -> tuple[str, str]:
        return self.roots.get((schema, table), (schema, table))

    def _row(self, xid: str, table: str, op: str, text: str) -> IndependentChange:
        try:
            if text == "(no-tuple-data)":
                return IndependentChange(xid, table, op)
            if op == "d":
                return IndependentChange(xid, table, op, self._values(text))
            before = None
            if text.startswith("old-key: "):
                old, _, text = _split_old(text)
                before = self._values(old)
            return IndependentChange(xid, table, op, before, self._values(text))
        except ValueError as error:
            return IndependentChange(xid, table, "?", text=str(error))

    def _values(self, text: str) -> dict[str, Any]:
        found, at = {}, 0
        while at < len(text):
            part = _VALUE.match(text, at)
            if part is None:
                raise ValueError(f"cannot read {text[at : at + 80]!r}")
            found[_unquoted(part[1])] = self._value(part[2], part[3])
            at = part.end()
        return found

    def _value(self, kind: str, text: str) -> Any:
        if text == "null":
            return None
        if text == "unchanged-toast-datum":
            return UNKNOWN_VALUE  # Ours may have it from the old row.
        if text.startswith("B'"):
            return _bits(kind, text[2:-1])
        if text.startswith("'"):
            text = text[1:-1].replace("''", "'")
        return self._shape(kind, text)

    def _shape(self, kind: str, text: str) -> Any:
        while kind in self.domains:
            kind = self.domains[kind]
        if kind == "box[]":
            return UNKNOWN_VALUE  # The only one with another mark between its elements.
        if kind.endswith("[]"):
            return _array(text, lambda element: self._shape(kind[:-2], element))
        base = kind.partition("(")[0].strip()
        if base == "numeric" and self.decimal_numbers and text.lower() not in _NO_NUMBERS:
            return Decimal(text)
        if base.startswith("bit"):
            return _bits(kind, text)
        if kind.rpartition(".")[2] == "hstore" and _HSTORE.fullmatch(text):
            return _hstore(text)
        shape = _SHAPES.get(_without_precision(kind))
        return text if shape is None else shape(text)


_NUMBER_BITS = 64
_NO_NUMBERS = {"nan", "infinity", "-infinity"}


def _unquoted(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


def _split_old(text: str) -> tuple[str, str, str]:
    """Split ``old-key: … new-tuple: …``; a value may hold either word."""
    at = len("old-key: ")
    while part := _VALUE.match(text, at):
        at = part.end()
    head, mark = text[len("old-key: ") : at], " new-tuple: "
    if not text.startswith(mark, at):
        raise ValueError(f"cannot read {text[at : at + 80]!r}")
    return head, mark, text[at + len(mark) :]


def _without_precision(kind: str) -> str:
    """Return ``timestamp with time zone`` of ``timestamp(3) with time zone``."""
    return re.sub(r"\(\d+(?:,\d+)?\)", "", kind)


def _number(text: str) -> Any:
    return text if text.lower() in _NO_NUMBERS else Decimal(text)


def _bits(kind: str, digits: str) -> Any:
    """Return bits as events have them; the length that the type has is that of its values."""
    if "varying" in kind or len(digits) > _NUMBER_BITS:
        return digits
    return digits == "1" if len(digits) == 1 else int(digits, 2)


def _moment(text: str) -> str:
    """Return ISO 8601; years before Christ and the infinities stay as they are printed."""
    if text.endswith("BC") or "infinity" in text:
        return text
    return text.replace(" ", "T", 1)


def _zoned(text: str) -> str:
    return re.sub(r"\+00$", "Z", _moment(text))


def _zoned_time(text: str) -> str:
    return re.sub(r"([+-]\d\d)$", r"\1:00", text)


def _json(text: str) -> Any:
    return json.loads(text, parse_float=Decimal)


def _bytes(text: str) -> dict[str, str]:
    return {"_base64": b64encode(bytes.fromhex(text[2:])).decode()}


_SHAPES: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(("smallint", "integer", "bigint", "oid", "int2", "int4", "int8"), int),
    **dict.fromkeys(("real", "double precision"), _number),
    "boolean": lambda text: text in ("true", "t"),
    "bytea": _bytes,
    "json": _json,
    "jsonb": _json,
    "timestamp without time zone": _moment,
    "timestamp with time zone": _zoned,
    "time with time zone": _zoned_time,
    "int2vector": lambda text: [int(part) for part in text.split()],
    "oidvector": lambda text: [int(part) for part in text.split()],
}
"""By the name of a type without its precision; any other is its text."""

_QUOTED = r'"((?:[^"\\]|\\.)*)"'
_PAIR = re.compile(rf"{_QUOTED}=>(?:{_QUOTED}|(NULL))", re.DOTALL)
_HSTORE = re.compile(rf"(?:{_QUOTED}=>(?:{_QUOTED}|NULL)(?:, |$))*", re.DOTALL)


def _hstore(text: str) -> dict[str, Any]:
    return {
        _unescaped(name): None if null else _unescaped(value)
        for name, value, null in _PAIR.findall(text)
    }


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)


_ELEMENT = re.compile(r'"((?:[^"\\]|\\.)*)"|([^",{}]+)|([{},])', re.DOTALL)


def _array(text: str, shape: Callable[[str], Any]) -> Any:
    """Return an array in the server's notation, ``{1,{2,NULL}}``, as lists."""
    text = text.partition("=")[2] if text.startswith("[") else text  # Lower bounds.
    stack: list[list[Any]] = [[]]
    for quoted, plain, mark in _ELEMENT.findall(text):
        if mark == "{":
            stack.append([])
        elif mark == "}":
            inner = stack.pop()
            stack[-1].append(inner)
        elif mark == ",":
            continue
        elif plain:
            stack[-1].append(None if plain.upper() == "NULL" else shape(plain))
        else:
            stack[-1].append(shape(_unescaped(quoted)))
    return stack[0][0]
