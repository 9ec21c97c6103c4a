"""Row events that the kernels cannot read, as the plain ones they stand for.

MySQL logs a JSON document that changed as differences (``binlog_row_value_options``), and MariaDB
compresses the values of ``COMPRESSED`` columns one by one. Both are rare, so they are understood
here, value by value, before the kernels decode a segment. Rows of other tables are not touched.
"""

import zlib
from dataclasses import replace
from typing import Any

import numpy as np

from airflow_provider_deltaforge.errors import SchemaError, TableError
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
from airflow_provider_deltaforge.sources.mysql.binlog.json_diffs import applied
from airflow_provider_deltaforge.sources.mysql.binlog.log_segment import BinlogSegment

_ZLIB = 8


def with_plain_rows(segment: BinlogSegment) -> BinlogSegment:
    """Return a segment all of whose captured rows the kernels can read.

    Raises:
        TableError: a value cannot be put together again.
    """
    plans = segment.plans.plans
    if not len(segment.rows):
        return segment
    packed = np.array([bool(plan.captured and plan.compressed) for plan in plans])
    captured = np.array([plan.captured for plan in plans])
    tables = segment.map_plans[segment.rows[:, ROW_MAP]]
    partial = (segment.rows[:, ROW_KIND] == PARTIAL) & captured[tables]
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
            name = f"{plan.db}.{plan.table}"
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
        """Return the columns of the coming image of which only differences are there."""
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
