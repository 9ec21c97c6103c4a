"""Holds batches to what the catalog says of their tables, where events leave the processors."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.columns import json_fields
from airflow_provider_deltaforge.columns.binary_columns import parts_of
from airflow_provider_deltaforge.columns.json_scan_kernel import stack_for
from airflow_provider_deltaforge.columns.value_codes import codes, combinations
from airflow_provider_deltaforge.events.change import OUTBOX
from airflow_provider_deltaforge.events.schema import Column, TableSchema, TypeSystem
from airflow_provider_deltaforge.sensing.data_drift import row_check_kernel as k
from airflow_provider_deltaforge.sensing.data_drift.expected_columns import ExpectedColumns
from airflow_provider_deltaforge.sensing.data_drift.findings import (
    ColumnFinding,
    DriftType,
    TableFindings,
)
from airflow_provider_deltaforge.spec.patterns import TableMatcher
from airflow_provider_deltaforge.spec.sensing import SchemaSensing
from airflow_provider_deltaforge.telemetry.redaction import redacted_value

SAMPLE_CHARACTERS = 100
HIDDEN = "***"
"""Stands in place of a sample that nobody may see."""

_SAMPLE_BYTES = 4 * SAMPLE_CHARACTERS
_NAME_CHARACTERS = 100
_FORMS = {
    k.NULL: "null",
    k.BOOL: "boolean",
    k.INTEGER: "integer",
    k.NUMBER: "number",
    k.STRING: "string",
    k.OBJECT: "object",
    k.ARRAY: "array",
}
_TYPES: dict[int, DriftType] = {
    k.UNEXPECTED_NULL: "unexpected_null",
    k.TYPE_MISMATCH: "type_mismatch",
    k.OUT_OF_RANGE: "value_out_of_range",
}

_Key = tuple[str, str | None, str, str | None]
"""Database, schema, table and fingerprint."""

SchemaLookup = Callable[[str, str | None, str, str | None], TableSchema | None]
"""From database, schema, table and fingerprint to the table as it was; None if nobody knows it."""

Hides = Callable[[TableSchema, str], bool]
"""Whether the values of a table's column are not to be shown."""


@dataclass(frozen=True, slots=True)
class DriftSettings:
    """What of a document concerns data drift.

    Attributes:
        sensing: its block ``schema_sensing``.
        type_system: whose names the types of columns have.
        has_processors: events may leave the processors otherwise than they came.
        hides: what its processors mask.
    """

    sensing: SchemaSensing
    type_system: TypeSystem
    has_processors: bool
    hides: Hides


class DriftDetector:
    """Finds data drift. Used by one thread.

    Args:
        settings: what the document says.
        schemas: finds the schema that a row was read by.
    """

    def __init__(self, settings: DriftSettings, schemas: SchemaLookup) -> None:
        self._settings = settings
        self._schemas = schemas
        tables = settings.sensing.tables
        self._include = TableMatcher(tables.include)
        self._exclude = TableMatcher(tables.exclude) if tables.exclude else None
        self._known: dict[tuple[_Key, bool], ExpectedColumns | None] = {}

    def open(self) -> None:
        """Compile the kernels, or load them from the cache, before rows are waiting."""
        precompile()

    def examine(
        self, source: pa.RecordBatch, rows: pa.RecordBatch, origins: Any = None
    ) -> list[TableFindings]:
        """Return what was found in a batch, by table.

        Args:
            source: change events as the source has them.
            rows: the same as they leave the processors.
            origins: int array per row, the row of ``source`` that it stands for; None: one for one.
        """
        places = np.arange(rows.num_rows) if origins is None else np.asarray(origins, np.intp)
        is_row = ~_of_outbox(source)[places]
        left = {group.key: group for group in self._checked(rows, is_row, is_source=False)}
        if not self._settings.has_processors or _same_images(source, rows):
            return [_Found(group, self._settings, group).result() for group in left.values()]
        every = np.ones(source.num_rows, np.bool_)
        came = {group.key: group for group in self._checked(source, every, is_source=True)}
        results = []
        for key in dict.fromkeys([*came, *left]):
            first = left.get(key) or came[key]
            results.append(_Found(first, self._settings, left.get(key), came.get(key), places))
        return [found.result() for found in results]

    def _checked(
        self, rows: pa.RecordBatch, is_row: np.ndarray, *, is_source: bool
    ) -> Iterator["_CheckedRows"]:
        """Yield the rows of each table whose columns are known, checked."""
        if not rows.num_rows:
            return
        names = [rows.column(name) for name in ("db", "schema", "table", "schema_version")]
        which, keys = combinations(names)
        images = np.flatnonzero(_is_image(rows) & is_row)
        for ordinal, key in enumerate(keys):
            expected = self._expected(key, is_source=is_source)
            if expected is None:
                continue
            own = images if len(keys) == 1 else images[which[images] == ordinal]
            if len(own):
                yield _CheckedRows(key, expected, rows.column("after"), own)

    def _expected(self, key: _Key, *, is_source: bool) -> ExpectedColumns | None:
        if (key, is_source) not in self._known:
            self._known[key, is_source] = self._look_up(key, is_source=is_source)
        return self._known[key, is_source]

    def _look_up(self, key: _Key, *, is_source: bool) -> ExpectedColumns | None:
        db, schema_name, table, _ = key
        qualifier = schema_name or db
        if not self._include.matches(qualifier, table):
            return None
        if self._exclude is not None and self._exclude.matches(qualifier, table):
            return None
        schema = self._schemas(*key)
        if schema is None or not schema.columns:
            return None
        names = [column.name for column in schema.columns]
        hidden = [name for name in names if self._settings.hides(schema, name)]
        made = ExpectedColumns.of_source if is_source else ExpectedColumns.of
        return made(schema, self._settings.type_system, hidden)


class _CheckedRows:
    """The rows of one table, checked."""

    def __init__(
        self, key: _Key, expected: ExpectedColumns, images: pa.BinaryArray, rows: Any
    ) -> None:
        self.key, self.expected, self.rows = key, expected, rows
        self.images = images
        parts = self.parts = parts_of(images)
        places = len(expected.schema.columns) + k.EXTRAS_MAX
        self.counts = np.zeros((places, k.FINDINGS), np.int64)
        self.observed = np.zeros((places, k.FINDINGS), np.int64)
        self.spans = np.empty((places, k.FINDINGS, k.SAMPLES, 2), np.int64)
        self.extras = np.empty((k.EXTRAS_MAX, 2), np.int64)
        self.totals = np.zeros(3, np.int64)
        self.flags = np.empty(len(rows), np.uint8)
        k.check_rows(
            *parts, rows.astype(np.int64), expected.names, expected.name_ends, expected.rules,
            expected.labels, stack_for(parts.offsets[:-1], parts.offsets[1:]), self.counts,
            self.observed, self.spans, self.extras, self.totals, self.flags,
        )  # fmt: skip

    @property
    def is_clean(self) -> bool:
        return not self.counts.any() and not self.totals[2]

    def is_null(self, column: str) -> Any:
        """Return which rows hold NULL in a column, as rows of the batch."""
        own = self.images.take(pa.array(self.rows))
        kinds = json_fields.kinds(own, json_fields.locate(own, [column]))
        return self.rows[kinds == json_fields.NULL]

    def texts(self, column: int, finding: int) -> list[str]:
        """Return the first values of a column that were found so, or their beginnings."""
        count = min(int(self.counts[column, finding]), k.SAMPLES)
        spans = self.spans[column, finding, :count].tolist()
        return [self._text(begin, end, _SAMPLE_BYTES) for begin, end in spans]

    def extra_name(self, extra: int) -> str:
        """Return the name of an undeclared column."""
        begin, end = self.extras[extra].tolist()
        text = self._text(begin, end, 4 * _NAME_CHARACTERS)
        try:
            name = str(json.loads(f'"{text}"', strict=False))
        except ValueError:  # Cut off within an escape.
            name = text
        return str(redacted_value(_shortened(name, _NAME_CHARACTERS)))

    def _text(self, begin: int, end: int, most: int) -> str:
        return bytes(self.parts.data[begin : min(end, begin + most)]).decode(errors="replace")


@dataclass(frozen=True, slots=True)
class _Found:
    """What the events of one table are, where they leave the processors and where they came from.

    Attributes:
        first: one of both below.
        settings: what the document says.
        left: the events as they leave; None where all were dropped, or renamed.
        came: the rows of the source; None where they are the same.
        places: per event that leaves, the row of the source it stands for.
    """

    first: _CheckedRows
    settings: DriftSettings
    left: _CheckedRows | None
    came: _CheckedRows | None = None
    places: Any = None

    def result(self) -> TableFindings:
        schema = self.first.expected.schema
        clean = all(rows is None or rows.is_clean for rows in (self.left, self.came))
        delivered = int(self.left.totals[0]) if self.left is not None else 0
        alone = self._alone()
        drifted, drifted_rows = (0, 0) if clean else self._drifted(alone)
        return TableFindings(
            table=schema.full_name,
            fingerprint=schema.fingerprint,
            events=delivered + len(alone),
            drifted=drifted,
            delivered=delivered,
            drifted_rows=drifted_rows,
            columns=() if clean else tuple(self._columns(schema)),
            absent={} if self.left is None else self._absent(self.left),
            unlisted=int(self.left.totals[2]) if self.left is not None else 0,
        )

    def _alone(self) -> Any:
        """Return the rows of the source that no event stands for which was looked at."""
        if self.came is None:
            return np.empty(0, np.int64)
        looked_at = self.came.rows[self.came.flags != k.SKIPPED]
        if self.left is None:
            return looked_at
        left = self.places[self.left.rows[self.left.flags != k.SKIPPED]]
        return looked_at[~np.isin(looked_at, left)]

    def _drifted(self, alone: Any) -> tuple[int, int]:
        """Count the events that differ, or whose rows do, and of those the rows that are alone."""
        drifted = np.empty(0, np.int64)
        if self.left is not None:
            drifted = self.left.rows[self.left.flags == k.DRIFTED]
        if self.came is None:
            return len(drifted), 0
        came = self.came.rows[self.came.flags == k.DRIFTED]
        origins = self.places[drifted] if len(drifted) else drifted
        more = np.count_nonzero(~np.isin(came, origins))
        return len(drifted) + int(more), int(np.count_nonzero(np.isin(came, alone)))

    def _columns(self, schema: TableSchema) -> Iterator[ColumnFinding]:
        for at, column in enumerate(schema.columns):
            for finding, drift_type in _TYPES.items():
                count = self._count(at, finding, column.name)
                if count:
                    is_null = finding == k.UNEXPECTED_NULL
                    yield ColumnFinding(
                        column.name,
                        drift_type,
                        "NOT NULL" if is_null else column.column_type,
                        count,
                        ("NULL",) if is_null else self._observed(at, finding),
                        () if is_null else self._samples(schema, column.name, at, finding),
                    )
        if self.left is not None:
            yield from self._undeclared(self.left, schema)

    def _count(self, column: int, finding: int, name: str) -> int:
        left = int(self.left.counts[column, finding]) if self.left is not None else 0
        came = int(self.came.counts[column, finding]) if self.came is not None else 0
        if not (left and came) or self.left is None or self.came is None:
            return left + came
        passed_on = self.places[self.left.is_null(name)]
        return left + int(np.count_nonzero(~np.isin(self.came.is_null(name), passed_on)))

    def _observed(self, column: int, finding: int) -> tuple[str, ...]:
        found = 0
        for rows in (self.left, self.came):
            found |= int(rows.observed[column, finding]) if rows is not None else 0
        return tuple(word for form, word in _FORMS.items() if found & form and form != k.NULL)

    def _samples(
        self, schema: TableSchema, name: str, column: int, finding: int
    ) -> tuple[str, ...]:
        """Return values as sinks are given them: nothing of the source's own rows."""
        if not self.settings.sensing.tracking.drift_samples:
            return ()
        if self.left is None or self.settings.hides(schema, name):
            return (HIDDEN,)
        texts = self.left.texts(column, finding)
        shown = (redacted_value({name: text})[name] for text in texts)
        return tuple(dict.fromkeys(_shortened(text, SAMPLE_CHARACTERS) for text in shown))

    def _undeclared(self, rows: _CheckedRows, schema: TableSchema) -> Iterator[ColumnFinding]:
        for extra in range(int(rows.totals[1])):
            at = len(schema.columns) + extra
            name = rows.extra_name(extra)
            observed = int(rows.observed[at, k.UNDECLARED])
            yield ColumnFinding(
                name,
                "undeclared_column",
                "no such column",
                int(rows.counts[at, k.UNDECLARED]),
                tuple(word for form, word in _FORMS.items() if observed & form),
                self._samples(schema, name, at, k.UNDECLARED),
            )

    @staticmethod
    def _absent(rows: _CheckedRows) -> dict[str, tuple[int, str]]:
        lacking = rows.counts[: len(rows.expected.schema.columns), k.MISSING]
        columns = rows.expected.schema.columns
        return {
            columns[at].name: (int(lacking[at]), columns[at].column_type)
            for at in np.flatnonzero(lacking).tolist()
        }


def precompile() -> None:
    """Compile the kernels, or load them from the cache."""
    schema = TableSchema("db", None, "t", (Column("c", "int", "int"),))
    images = pa.array([b'{"c":null}'], pa.binary())
    for made in (ExpectedColumns.of, ExpectedColumns.of_source):
        rows = np.zeros(1, np.int64)
        checked = _CheckedRows(("db", None, "t", None), made(schema, "mysql"), images, rows)
        checked.is_null("c")


def _same_images(source: pa.RecordBatch, rows: pa.RecordBatch) -> bool:
    """Return whether no processor has touched an image, dropped an event or made one."""
    if source.num_rows != rows.num_rows:
        return False
    was, now = source.column("after"), rows.column("after")
    addresses = [[b.address if b is not None else 0 for b in c.buffers()] for c in (was, now)]
    return was.offset == now.offset and addresses[0] == addresses[1]


def _of_outbox(source: pa.RecordBatch) -> np.ndarray:
    """Return which events are outbox messages: what becomes of them are no rows of their table."""
    schemas = source.column("schema")
    marks = [*(name == OUTBOX for name in schemas.dictionary.to_pylist()), False]
    return np.array(marks)[codes(schemas)]


def _is_image(rows: pa.RecordBatch) -> Any:
    """Return which events hold a row, and nothing else, as their new image."""
    image = rows.column("after").is_valid()
    routing = rows.column("routing")
    if routing.null_count < len(routing):
        raw = pc.fill_null(pc.struct_field(routing, "raw_payload"), False)  # noqa: FBT003
        image = pc.and_not(image, raw)
    return np.asarray(image.to_numpy(zero_copy_only=False))


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
