"""Row events that the kernels cannot read, as the plain ones they stand for.

MySQL logs a JSON document that changed as differences (``binlog_row_value_options``), and MariaDB
compresses the values of ``COMPRESSED`` columns one by one. Both are rare, so they are understood
here, value by value, before the kernels decode a segment. Rows of other tables are not touched.
"""

import json
import re
import zlib
from dataclasses import replace
from typing import Any

import numpy as np

from airflow_provider_deltaforge.errors import SchemaError, TableError
from airflow_provider_deltaforge.events.table_names import qualified_name
from airflow_provider_deltaforge.sources.mysql.binlog import column_kinds as k
from airflow_provider_deltaforge.sources.mysql.binlog.decode_plans import TableDecodePlan
from airflow_provider_deltaforge.sources.mysql.binlog.framing_kernel import (
    PARTIAL,
    ROW_KIND,
    ROW_MAP,
    ROW_START,
    ROW_STOP,
    UPDATE,
)
from airflow_provider_deltaforge.sources.mysql.binlog.log_segment import BinlogSegment

_ZLIB = 8
_REPLACE, _INSERT, _REMOVE = range(3)
_OBJECT, _ARRAY, _LITERAL, _INT16, _UINT16, _INT32, _UINT32 = 1, 3, 4, 5, 6, 7, 8
_TEXT, _OPAQUE = 12, 15
_INLINE = {_LITERAL: 1, _INT16: 2, _UINT16: 2, _INT32: 4, _UINT32: 4}
_SCALARS = {**_INLINE, 9: 8, 10: 8, 11: 8}
_LEG = re.compile(r'\.("(?:[^"\\]|\\.)*"|[^.\[]+)|\[(?:(\d+)|last(?:-(\d+))?)\]')

Scalar = tuple[int, bytes]
Path = list[bytes | int]


def with_plain_rows(segment: BinlogSegment) -> BinlogSegment:
    """Return a segment all of whose captured rows the kernels can read.

    Raises:
        TableError: a value cannot be put together again.
    """
    plans = segment.plans.plans
    if not len(segment.rows):
        return segment
    partial, packed = segment.rows[:, ROW_KIND] == PARTIAL, segment.plans.compressed
    if not np.count_nonzero(partial) and not np.count_nonzero(packed):
        return segment
    tables = segment.map_plans[segment.rows[:, ROW_MAP]]
    partial &= segment.plans.arrays.captured[tables]
    events = np.flatnonzero(packed[tables] | partial).tolist()
    if not events:
        return segment
    rows = segment.rows.copy()
    parts, at = [segment.data], len(segment.data)
    for event in events:
        plan = plans[int(tables[event])]
        start, stop = int(rows[event, ROW_START]), int(rows[event, ROW_STOP])
        body = segment.data[start:stop].tobytes()
        try:
            plain = np.frombuffer(_Event(body, plan, int(rows[event, ROW_KIND])).plain(), np.uint8)
        except (SchemaError, IndexError, zlib.error) as error:
            name = qualified_name(plan.db, plan.table)
            raise TableError(f"{name}: {_reason(error)}", name) from error
        parts.append(plain)
        rows[event, ROW_START], rows[event, ROW_STOP] = at, at + len(plain)
        rows[event, ROW_KIND] = UPDATE if partial[event] else rows[event, ROW_KIND]
        at += len(plain)
    return replace(segment, data=np.concatenate(parts), rows=rows)


def _reason(error: Exception) -> str:
    if isinstance(error, SchemaError):
        return str(error)
    return "a row of the log is damaged, or does not fit its description"


class _Event:
    """The body of one row event, from its number of columns on."""

    def __init__(self, body: bytes, plan: TableDecodePlan, kind: int) -> None:
        self._body = body
        self._plan = plan
        self._kind = kind
        self._count = len(plan.columns)
        self._at = 0
        self._sizes = [k.value_size(kind, p1, p2) for kind, p1, p2, _ in plan.columns]
        self._documents = [i for i, column in enumerate(plan.columns) if column[0] == k.JSON]

    def plain(self) -> bytes:
        """Return the body with whole values."""
        head = 3 if self._body[0] == 252 else 1
        bitmap = (self._count + 7) // 8
        both = self._kind in (UPDATE, PARTIAL)
        self._at = head + bitmap * (2 if both else 1)
        first = self._body[head : head + bitmap]
        second = self._body[head + bitmap : self._at]
        parts = [self._body[: self._at]]
        while self._at < len(self._body):
            before = self._image(first, parts, {}, frozenset())
            if both:
                differing = self._differing() if self._kind == PARTIAL else frozenset()
                self._image(second, parts, before, differing)
        return b"".join(parts)

    def _differing(self) -> frozenset[int]:
        """Return the columns of the next image that hold differences only."""
        options = self._take(1)[0]
        if not options & 1:
            return frozenset()
        bits = self._take((len(self._documents) + 7) // 8)
        return frozenset(
            column for n, column in enumerate(self._documents) if bits[n >> 3] >> (n & 7) & 1
        )

    def _image(
        self,
        present: bytes,
        parts: list[bytes],
        before: dict[int, bytes | None],
        differing: frozenset[int],
    ) -> dict[int, bytes | None]:
        """Append one image in plain form; return the documents it holds."""
        places = [i for i in range(self._count) if present[i >> 3] >> (i & 7) & 1]
        nulls = self._take((len(places) + 7) // 8)
        parts.append(nulls)
        found: dict[int, bytes | None] = {}
        for bit, column in enumerate(places):
            if nulls[bit >> 3] >> (bit & 7) & 1:
                found[column] = None
                continue
            size = self._sizes[column]
            if size:
                parts.append(self._take(size))
                continue
            prefix = self._plan.columns[column][1]
            value = self._take(int.from_bytes(self._take(prefix), "little"))
            if column in differing:
                value = self._whole(column, before, value)
            elif column in self._plan.compressed:
                value = _unpacked(value)
            if column in self._documents:
                found[column] = value
            parts += (len(value).to_bytes(prefix, "little"), value)
        return found

    def _whole(self, column: int, before: dict[int, bytes | None], diffs: bytes) -> bytes:
        document = before.get(column)
        if document is None:
            raise SchemaError(
                f"column {self._plan.names[column]}: the log holds what changed in a JSON document "
                "but not the document; set binlog_row_value_options='' or binlog_row_image=FULL"
            )
        return applied(document, diffs) if diffs else document

    def _take(self, size: int) -> bytes:
        part = self._body[self._at : self._at + size]
        if len(part) != size:
            raise IndexError(size)
        self._at += size
        return part


def _unpacked(value: bytes) -> bytes:
    """Return a value of a COMPRESSED column: behind its head, as it is or deflated."""
    if not value:
        return value
    head: Any = value[0]
    if not head >> 4:
        return value[1:]
    if head >> 4 != _ZLIB:
        raise SchemaError("a COMPRESSED column uses an unknown method; report it")
    behind = 1 + (head & 7)
    return zlib.decompress(value[behind:], -zlib.MAX_WBITS if head & 8 else zlib.MAX_WBITS)


def applied(document: bytes, diffs: bytes) -> bytes:
    """Return a binary document with a vector of differences applied, in its large form.

    Raises:
        SchemaError: the differences do not fit the document.
    """
    try:
        tree = _parsed(document[0], document, 1)
        at = 0
        while at < len(diffs):
            operation = diffs[at]
            length, at = _length(diffs, at + 1)
            path = _path(diffs[at : at + length].decode())
            at += length
            value = None
            if operation != _REMOVE:
                length, at = _length(diffs, at)
                value = _parsed(diffs[at], diffs[: at + length], at + 1)
                at += length
            tree = _changed(tree, operation, path, value)
        kind, body = _written(tree)
        return bytes([kind]) + body
    except (IndexError, KeyError, ValueError, TypeError) as error:
        raise SchemaError(
            "a JSON difference of the log does not fit the document that it changes"
        ) from error


def _path(text: str) -> Path:
    """Return the steps of ``$.name[3]``; those from the end, as ``[last-1]``, are negative."""
    legs: Path = []
    at = 1
    while at < len(text):
        leg = _LEG.match(text, at)
        if leg is None:
            raise ValueError(text)
        at = leg.end()
        name, index, from_end = leg.groups()
        if index is not None:
            legs.append(int(index))
        elif name is None:
            legs.append(-1 - int(from_end or 0))
        else:
            legs.append((json.loads(name) if name[0] == '"' else name).encode())
    return legs


def _changed(tree: Any, operation: int, path: Path, value: Any) -> Any:
    if not path:
        if operation != _REPLACE:
            raise ValueError(operation)
        return value
    inside = tree
    for leg in path[:-1]:
        inside = _step(inside, leg)
    last: Any = path[-1]
    there = not isinstance(inside, dict) or last in inside
    if operation == _INSERT and isinstance(inside, list):
        # The server too puts what is behind the end at the end, and before the start at the start.
        inside.insert(int(last), value)
    elif there is (operation == _INSERT):
        raise KeyError(last)
    elif operation == _REMOVE:
        del inside[last]
    else:
        inside[last] = value
    return tree


def _step(inside: Any, leg: Any) -> Any:
    if not isinstance(inside, (dict, list)):
        raise TypeError(leg)
    return inside[leg]


def _length(data: bytes, at: int) -> tuple[int, int]:
    """Return (length in the form of the client protocol, offset behind it)."""
    first = data[at]
    size = {252: 2, 253: 3, 254: 8}.get(first, 0)
    if not size:
        return first, at + 1
    return int.from_bytes(data[at + 1 : at + 1 + size], "little"), at + 1 + size


def _groups(data: bytes, at: int) -> tuple[int, int]:
    """Return (length in groups of seven bits, offset behind it)."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _parsed(kind: int, data: bytes, at: int) -> Any:
    """Return a value as a dict, a list or (type, bytes)."""
    if kind in _SCALARS:
        return kind, data[at : at + _SCALARS[kind]]
    if kind == _TEXT:
        length, begin = _groups(data, at)
        return kind, data[at : begin + length]
    if kind == _OPAQUE:
        length, begin = _groups(data, at + 1)
        return kind, data[at : begin + length]
    if kind > _ARRAY:
        raise ValueError(kind)
    width = 4 if kind & 1 else 2
    count = int.from_bytes(data[at : at + width], "little")
    is_object = kind < 2
    entry = at + 2 * width
    values = entry + (count * (width + 2) if is_object else 0)
    found = []
    for i in range(count):
        place = values + i * (width + 1)
        inner = data[place]
        inline = _INLINE.get(inner, 9) <= width
        offset = int.from_bytes(data[place + 1 : place + 1 + width], "little")
        found.append(_parsed(inner, data, place + 1 if inline else at + offset))
    if not is_object:
        return found
    names = []
    for i in range(count):
        place = entry + i * (width + 2)
        begin = at + int.from_bytes(data[place : place + width], "little")
        length = int.from_bytes(data[place + width : place + width + 2], "little")
        names.append(data[begin : begin + length])
    return dict(zip(names, found, strict=True))


def _written(value: Any) -> tuple[int, bytes]:
    """Return (type, bytes) of a value, objects and arrays in their large form."""
    if isinstance(value, tuple):
        return value
    names: list[bytes] = []
    inside = value
    if isinstance(value, dict):
        # As the server sorts them.
        names = sorted(value, key=lambda name: (len(name), name))
        inside = [value[name] for name in names]
    begin = 8 + 6 * len(names) + 5 * len(inside)
    keys = b"".join(names)
    entries, at = b"", begin
    for name in names:
        entries += at.to_bytes(4, "little") + len(name).to_bytes(2, "little")
        at += len(name)
    bodies: list[bytes] = []
    for item in inside:
        kind, body = _written(item)
        if kind in _INLINE:
            entries += bytes([kind]) + body.ljust(4, b"\0")
        else:
            entries += bytes([kind]) + at.to_bytes(4, "little")
            bodies.append(body)
            at += len(body)
    head = len(inside).to_bytes(4, "little") + at.to_bytes(4, "little")
    kind = _OBJECT if isinstance(value, dict) else _ARRAY
    return kind, head + entries + keys + b"".join(bodies)
