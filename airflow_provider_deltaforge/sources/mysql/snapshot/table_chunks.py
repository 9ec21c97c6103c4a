"""Cuts tables into ranges of their primary key, with borders that are keys of the table.

The border of a small table's chunk is the key of every n-th row in index order (``ORDER BY key
LIMIT 1 OFFSET n``). That reads the whole table, so of a large one borders are looked for instead: a
guess between two keys, the first key at or behind it, and how many rows the server estimates up to
there, for which it looks at a few pages of the index (``EXPLAIN``). Estimates are weighed against
counted rows at some places of the table first; where they do not agree, rows are counted.

A guess takes the key for a number. It need not be in the column's order: all comparing is the
server's, and where guesses lead nowhere rows are counted for this chunk.
"""

import ipaddress
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Context, Decimal
from os.path import commonpath
from typing import Any

from airflow_provider_deltaforge.events.schema import Column, TableSchema
from airflow_provider_deltaforge.sources.contract import TableChunk
from airflow_provider_deltaforge.sources.mysql.binlog import column_kinds as k
from airflow_provider_deltaforge.sources.mysql.catalog import TableSize, fetch, quote
from airflow_provider_deltaforge.sources.mysql.column_types import BY_NAME
from airflow_provider_deltaforge.sources.mysql.snapshot.key_ranges import (
    BYTES,
    INTEGERS,
    chunk_columns,
    cut_by,
    literal,
    range_condition,
)
from airflow_provider_deltaforge.sources.mysql.tuning import MYSQL_TUNING, MySqlTuning
from airflow_provider_deltaforge.sources.shared.table_chunks import Border, TableRange, sampled

_CHUNKS = 40  # Fewer chunks than this are counted: the weighing alone reads nine.
_PLACES = 4
_GUESSES = 12
_EDGE_KEYS = 300
_DIGITS = 12
_CODECS = {"utf8mb4": "utf-8", "utf8mb3": "utf-8", "utf8": "utf-8", "latin1": "cp1252",
           "ascii": "ascii"}  # fmt: skip
_MICROSECOND = timedelta(microseconds=1)
_EXACTLY = Context(prec=100)


def plan_table(
    connection: Any,
    facts: TableSize,
    chunk_rows: int,
    where: str | None = None,
    tuning: MySqlTuning = MYSQL_TUNING,
) -> Iterator[TableChunk]:
    """Yield a table's chunks in key order, at least one; borders are sampled as it goes on.

    Args:
        connection: pymysql connection, time zone UTC.
        facts: the table.
        chunk_rows: rows from one border to the next.
        where: SQL condition that the chunk's rows must fulfil as well.
        tuning: from how many rows on borders are looked for.
    """
    schema = facts.schema
    columns = chunk_columns(schema) if facts.transactional else []
    table = TableRange(schema.db, None, schema.table, cut_by(columns), where)
    if not columns:
        yield from table.chunks((), facts.rows_estimate)
        return
    keys = _Keys(connection, schema, columns)
    search = _BorderSearch(keys, chunk_rows)
    if keys.rows_of_table() >= max(tuning.sampled_rows, _CHUNKS * chunk_rows) and search.weigh():
        borders: Iterable[Border] = sampled(search.border_behind)
    else:
        borders = sampled(lambda after: keys.counted(after, chunk_rows))
    yield from table.chunks(borders, chunk_rows)


def borders_within(
    connection: Any, schema: TableSchema, bounds: Mapping[str, Any], rows: int
) -> Iterator[Border]:
    """Yield the key of every ``rows``-th row of a chunk, which may be the end of the chunk.

    Args:
        connection: pymysql connection, time zone UTC.
        schema: of the table.
        bounds: of the chunk, which has a key.
        rows: from one border to the next.
    """
    keys = _Keys(connection, schema, chunk_columns(schema)[: len(bounds["columns"])])
    begin, end = bounds.get("after"), bounds.get("upto")
    yield from sampled(lambda after: keys.counted(after or begin, rows, end))


class _Keys:
    """Looks keys up in a table's primary key.

    A value is an int, a str, or ``{"hex": …}``, with ``charset`` for text.
    """

    def __init__(self, connection: Any, schema: TableSchema, columns: Sequence[Column]) -> None:
        self.columns = columns
        self._connection = connection
        self._names = [column.name for column in columns]
        self._select = ", ".join(_sampled(column) for column in columns)
        self._table = quote(schema.db, schema.table)

    def counted(self, after: Border | None, rows: int, upto: Border | None = None) -> Border | None:
        """Return the key of the ``rows``-th row behind ``after``; None if fewer are left."""
        bounds = {"columns": self._names, "after": after, "upto": upto}
        condition = range_condition(bounds) or "1"
        return self._first(f"WHERE {condition}", f"1 OFFSET {max(1, rows) - 1}")

    def at_or_behind(self, prefix: Border, value: Any) -> Border | None:
        """Return the first key with this prefix whose next column is ``value`` or more."""
        name = quote(self._names[len(prefix)])
        return self._first(f"{self._with(prefix)} AND {name} >= {literal(value)}")

    def edge(self, prefix: Border = (), *, last: bool) -> Border | None:
        """Return the first or last key with this prefix; None when there is none."""
        return self._first(self._with(prefix), last=last)

    def edges(self) -> list[Border]:
        """Return some keys from both ends of the table."""
        keys = self._rows("", str(_EDGE_KEYS), last=False)
        return keys + self._rows("", str(_EDGE_KEYS), last=True)

    def rows_of_table(self) -> int:
        """Return how many rows the engine believes that there are."""
        return self._estimated("")

    def estimated(self, after: Border | None, upto: Border) -> int:
        """Return how many rows the engine estimates in a range."""
        bounds = {"columns": self._names, "after": after, "upto": upto}
        return self._estimated(f"WHERE {range_condition(bounds)}")

    def _with(self, prefix: Border) -> str:
        pairs = zip(self._names, prefix, strict=False)
        equal = [f"{quote(name)} = {literal(value)}" for name, value in pairs]
        return f"WHERE {' AND '.join(equal) or '1'}"

    def _first(self, condition: str, limit: str = "1", *, last: bool = False) -> Border | None:
        keys = self._rows(condition, limit, last=last)
        return keys[0] if keys else None

    def _rows(self, condition: str, limit: str, *, last: bool) -> list[Border]:
        order = ", ".join(quote(name) + " DESC" * last for name in self._names)
        sql = (
            f"SELECT {self._select} FROM {self._table} FORCE INDEX (PRIMARY) {condition} "
            f"ORDER BY {order} LIMIT {limit}"
        )
        return [
            [_stored(column, value) for column, value in zip(self.columns, row, strict=True)]
            for row in fetch(self._connection, sql)
        ]

    def _estimated(self, condition: str) -> int:
        # MySQL does not look into an index that it is forced to use.
        sql = f"SELECT 1 FROM {self._table} USE INDEX (PRIMARY) {condition}"
        with self._connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN FORMAT=TRADITIONAL {sql}")
            at = [name.lower() for name, *_ in cursor.description].index("rows")
            return sum(int(row[at] or 0) for row in cursor.fetchall())


class _BorderSearch:
    """Looks for keys that are about so many rows apart.

    Args:
        keys: of the table.
        rows: of a chunk.
    """

    def __init__(self, keys: _Keys, rows: int) -> None:
        self._keys = keys
        self._rows = rows
        self._factor = 1.0
        self._steps: dict[tuple[int, int], int] = {}
        self._letters: list[list[str]] = []
        self._first: Border | None = None

    def weigh(self) -> bool:
        """Compare estimates with counted rows; return whether one follows from the other."""
        first, last = self._keys.edge(last=False), self._keys.edge(last=True)
        if first is None or last is None:
            return False
        self._first = first
        edges = self._keys.edges()
        self._letters = [
            _letters(column, edges, at) for at, column in enumerate(self._keys.columns)
        ]
        scale = self._scale(0, first, last)
        if scale is None:
            return False
        low, high = scale.number(first[0]), scale.number(last[0])
        places: list[Border | None] = [first]
        for place in range(1, _PLACES + 1):
            value = scale.value(low + (high - low) * place // (_PLACES + 1))
            places.append(self._keys.at_or_behind((), value))
        factors = [factor for place in places if (factor := self._factor_at(place, 1))]
        four = self._factor_at(first, 4)
        if not factors or four is None:
            return False
        self._factor = statistics.median(factors)
        # Where the engine does not look, or trusts an old statistic, every range has as many.
        grows = factors[0] / 2.5 < four < factors[0] * 2.5
        return grows and max(factors) < 3 * min(factors)

    def _factor_at(self, place: Border | None, times: int) -> float | None:
        """Return by what to multiply estimates at a place of the table."""
        behind = self._keys.counted(place, times * self._rows)
        if behind is None:
            return None
        return times * self._rows / max(1, self._keys.estimated(place, behind))

    def border_behind(self, after: Border | None) -> Border | None:
        """Return the border behind another one, or the first behind None; None: only few rows."""
        for depth in reversed(range(len(self._keys.columns) if after else 1)):
            prefix = after[:depth] if after else ()
            last = self._keys.edge(prefix, last=True)
            rest = 0.0 if last is None else self._between(after, last)
            if last is None or (depth and rest < 0.75 * self._rows):
                continue
            if rest <= 1.5 * self._rows:
                return last if depth else None
            return self._guessed(after, prefix, last, rest) or self._counted(after, prefix, last)
        return None

    def _between(self, after: Border | None, upto: Border) -> float:
        # Of the range before a first key some servers look at the leading column only.
        return self._keys.estimated(after or self._first, upto) * self._factor

    def _counted(self, after: Border | None, prefix: Border, last: Border) -> Border | None:
        border = self._keys.counted(after, self._rows)
        scale = self._scale(len(prefix), after or last, last)
        if border is not None and after is not None and scale is not None:
            at = len(prefix)
            self._steps[at, scale.prefix] = scale.number(border[at]) - scale.number(after[at])
        return border

    def _guessed(
        self, after: Border | None, prefix: Border, last: Border, rest: float
    ) -> Border | None:
        """Return a border with this prefix and before ``last``; None when guesses lead nowhere."""
        depth = len(prefix)
        start = after or self._keys.edge(prefix, last=False)
        scale = None if start is None else self._scale(depth, start, last)
        if start is None or scale is None:
            return None
        low, high = scale.number(start[depth]), scale.number(last[depth])
        origin, below, above = low, 0.0, rest
        step = self._steps.get((depth, scale.prefix), 0)
        if not 0 < step < high - low:
            step = int((high - low) * self._rows / rest)
        guess = low + step
        for turn in range(_GUESSES):
            if high - low < 2:
                break
            guess = min(max(guess, low + 1), high - 1)
            border = self._keys.at_or_behind(prefix, scale.value(guess))
            rows = rest if border is None else self._between(after, border)
            if border is not None and 0.75 * self._rows <= rows <= 1.35 * self._rows:
                self._steps[depth, scale.prefix] = guess - origin
                return border
            if rows < self._rows:
                low, below = guess, rows
            else:
                high, above = guess, rows
            part = (self._rows - below) / max(above - below, 1)
            # Now and then the middle, because keys need not lie as evenly as they do elsewhere.
            guess = low + int((high - low) * (0.5 if turn % 3 == 2 else part))
        return None

    def _scale(self, depth: int, low: Border, high: Border) -> "_Scale | None":
        letters = self._letters[depth]
        try:
            return _scale_of(self._keys.columns[depth], low[depth], high[depth], letters)
        except (ValueError, ArithmeticError):  # Such as the date 0000-00-00.
            return None


@dataclass(frozen=True, slots=True)
class _Scale:
    """Values of a column as numbers.

    Attributes:
        number: returns a stored value's number.
        value: returns a value for a number.
        prefix: characters that all values begin with.
    """

    number: Callable[[Any], int]
    value: Callable[[int], Any]
    prefix: int = 0


def _scale_of(column: Column, low: Any, high: Any, letters: Sequence[str]) -> _Scale | None:
    """Return the scale of a column between two values; None for one that cannot be guessed.

    Raises:
        ValueError, ArithmeticError: a value is none that has a number.
    """
    kind = BY_NAME[column.data_type].kind
    scales: dict[int, Callable[[], _Scale | None]] = {
        k.INT: lambda: _Scale(int, int),
        k.YEAR: lambda: _Scale(int, int),
        k.DECIMAL: lambda: _decimal_scale(column.numeric_scale or 0),
        k.DATE: lambda: _Scale(
            lambda text: date.fromisoformat(text).toordinal(),
            lambda number: date.fromordinal(number).isoformat(),
        ),
        k.DATETIME: lambda: _Scale(_microseconds, _moment),
        k.TIMESTAMP: lambda: _Scale(_microseconds, _moment),
        k.UUID: lambda: _Scale(lambda text: int(text.replace("-", ""), 16), _uuid),
        k.INET: lambda: _Scale(
            lambda text: int(ipaddress.ip_address(text)),
            lambda number: str(
                ipaddress.IPv4Address(number)
                if column.data_type == "inet4"
                else ipaddress.IPv6Address(number)
            ),
        ),
        k.TEXT: lambda: _text_scale(column, low, high, letters),
        k.BINARY: lambda: _text_scale(column, low, high, letters),
    }
    scale = scales[kind]() if kind in scales else None
    if scale is not None:
        scale.number(low), scale.number(high)
    return scale


def _decimal_scale(digits: int) -> _Scale:
    return _Scale(
        lambda text: int(Decimal(text).scaleb(digits, _EXACTLY)),
        lambda number: f"{Decimal(number).scaleb(-digits, _EXACTLY):f}",
    )


def _microseconds(text: str) -> int:
    whole, _, fraction = text.partition(".")
    moment = datetime.fromisoformat(f"{whole}.{fraction:0<6}")
    return (moment - datetime.min) // _MICROSECOND  # noqa: DTZ901 - the column has no zone


def _moment(number: int) -> str:
    moment = datetime.min + number * _MICROSECOND  # noqa: DTZ901 - the column has no zone
    return moment.isoformat(" ", "microseconds")


def _uuid(number: int) -> str:
    text = f"{number:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def _text_scale(column: Column, low: Any, high: Any, letters: Sequence[str]) -> _Scale | None:
    """Return the scale of texts or bytes; those that begin alike are told apart behind that."""
    codec = _codec(column)
    if codec is None or not letters:
        return None
    shared = commonpath([_text(low, codec), _text(high, codec)])
    places = {letter: at for at, letter in enumerate(letters, 1)}
    base = len(letters) + 1

    def number(value: Any) -> int:
        text = _text(value, codec)[len(shared) : len(shared) + _DIGITS]
        total = 0
        for at in range(_DIGITS):
            total = total * base + (places.get(text[at], 1) if at < len(text) else 0)
        return total

    def value(number: int) -> Any:
        text = ""
        for at in reversed(range(_DIGITS)):
            place = number // base**at % base
            if place == 0:
                break
            text += letters[place - 1]
        encoded = {"hex": (shared + text).encode(codec, "replace").hex()}
        return {**low, **encoded}

    return _Scale(number, value, len(shared))


def _letters(column: Column, keys: Sequence[Border], at: int) -> list[str]:
    """Return the letters of a column's values, in about the order of its collation."""
    codec = _codec(column)
    if BY_NAME[column.data_type].kind not in BYTES or codec is None:
        return []
    if BY_NAME[column.data_type].kind == k.BINARY:
        return [chr(code) for code in range(256)]
    seen = {letter for key in keys for letter in _text(key[at], codec)}
    return sorted(seen, key=lambda letter: (letter.casefold(), letter))


def _codec(column: Column) -> str | None:
    if column.charset in (None, "binary"):
        return "latin-1"
    return _CODECS.get(column.charset or "")


def _text(value: Any, codec: str) -> str:
    return bytes.fromhex(value["hex"]).decode(codec, "replace")


def _sampled(column: Column) -> str:
    """Return what to select so that a key's value arrives exactly."""
    name, kind = quote(column.name), BY_NAME[column.data_type].kind
    if kind in BYTES:
        return f"HEX({name})"
    return name if kind in INTEGERS else f"CAST({name} AS CHAR)"


def _stored(column: Column, value: Any) -> Any:
    """Return a sampled value in its JSON form."""
    kind = BY_NAME[column.data_type].kind
    if kind in INTEGERS:
        return int(value)
    if kind not in BYTES:
        return str(value)
    if kind == k.TEXT and column.charset not in (None, "binary"):
        return {"hex": value, "charset": column.charset}
    return {"hex": value}
