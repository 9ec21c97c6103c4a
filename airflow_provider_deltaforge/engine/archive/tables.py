"""Change batches as Parquet tables, and back: nothing of them is lost but how they were cut."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import TypeAdapter

from airflow_provider_deltaforge.events.change import (
    CHANGE_SCHEMA,
    ChangeBatch,
)
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.events.table_names import qualified_name
from airflow_provider_deltaforge.sources.contract import Source
from airflow_provider_deltaforge.sources.shared.packed_positions import PackedPositions

_SEQUENCE = "sequence"
_NAMES = {"db": "db_name", "schema": "schema_name", "table": "table_name", "ts_ms": "committed_at"}
"""Columns that have another name in files: a partition is called ``table``, and a time is one."""
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_DAY_MS = 86_400_000
_LABEL_CHARS = 160
_CUT_ESCAPE = re.compile("%[0-9A-F]?$")

_BATCHES = pa.schema(
    [
        ("rows", pa.int64()),
        ("end", pa.utf8()),  # JSON, as all texts here
        ("positions", pa.utf8()),
        ("numbers", pa.list_(pa.int64())),
        ("numbers_width", pa.int32()),
        ("nbytes", pa.int64()),
        ("open_tx", pa.bool_()),
        ("continues", pa.bool_()),
        ("schemas", pa.list_(pa.utf8())),
        ("connector", pa.utf8()),
    ]
)

_table_schema = TypeAdapter(TableSchema)


def _file_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind) or kind == pa.binary():
        return pa.utf8()  # All of it is text, most of it JSON.
    return kind


def _file_field(field: pa.Field) -> pa.Field:
    name = _NAMES.get(field.name, field.name)
    kind = pa.timestamp("ms", "UTC") if field.name == "ts_ms" else _file_type(field.type)
    return pa.field(name, kind, field.nullable)


FILE_SCHEMA = pa.schema(
    [pa.field(_SEQUENCE, pa.int64(), nullable=False), *map(_file_field, CHANGE_SCHEMA)]
)
"""Of the files of rows. ``sequence`` orders the rows of one part, over all its files."""


@dataclass(frozen=True, slots=True)
class ArchivedRows:
    """The rows of one table and day, in the order of the log."""

    day: str
    table: str
    rows: pa.Table

    @property
    def folder(self) -> str:
        """Where their files lie."""
        label = quote(self.table, safe="")
        if len(label) > _LABEL_CHARS:
            digest = hashlib.sha256(self.table.encode()).hexdigest()[:16]
            label = f"{_CUT_ESCAPE.sub('', label[:_LABEL_CHARS])}~{digest}"
        return f"day={self.day}/table={label}"


def split_by_table(batches: Sequence[ChangeBatch]) -> list[ArchivedRows]:
    """Return the rows of some batches by table and day, in the form of files."""
    parts = [batch.rows for batch in batches if batch.rows.num_rows]
    if not parts:
        return []
    table = pa.Table.from_batches(parts, CHANGE_SCHEMA)
    columns = [np.arange(table.num_rows)]
    columns += [
        table.column(field.name).cast(_file_field(field).type)
        if pa.types.is_timestamp(_file_field(field).type) or _file_type(field.type) != field.type
        else table.column(field.name)
        for field in CHANGE_SCHEMA
    ]
    rows = pa.Table.from_arrays(columns, schema=FILE_SCHEMA)
    names, codes = _groups(parts)
    if len(names) > 1:
        rows = rows.take(np.argsort(codes, kind="stable"))
    counts = np.bincount(codes, minlength=len(names))
    starts = np.cumsum(counts) - counts
    return [
        ArchivedRows(*names[at], rows.slice(int(starts[at]), int(counts[at])))
        for at in range(len(names))
    ]


def _groups(parts: Sequence[pa.RecordBatch]) -> tuple[list[tuple[str, str]], np.ndarray]:
    """Return day and table of each group of rows, and the group of each row."""
    known: dict[tuple[str, str], int] = {}
    codes = []
    for rows in parts:
        days = rows.column("ts_ms").to_numpy() // _DAY_MS
        columns = [rows.column(name) for name in ("db", "schema", "table")]
        wide = [days - days.min()]
        wide += [c.indices.fill_null(-1).to_numpy(zero_copy_only=False) + 1 for c in columns]
        code = np.zeros(rows.num_rows, np.int64)
        for column in wide:
            code = code * (int(column.max()) + 1) + column
        _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
        ordinals = []
        for row in first.tolist():
            db, schema, table = (column[row].as_py() for column in columns)
            name = (day_of(int(days[row]) * _DAY_MS), qualified_name(schema or db, table))
            ordinals.append(known.setdefault(name, len(known)))
        codes.append(np.array(ordinals, np.int64)[inverse])
    return list(known), np.concatenate(codes)


def day_of(ms: int) -> str:
    """Return the day (UTC) of a time in ms since the epoch; one beyond all calendars is its end."""
    try:
        return (_EPOCH + timedelta(milliseconds=ms)).date().isoformat()
    except OverflowError:
        return "9999-12-31" if ms > 0 else "0001-01-01"


def batches_table(
    batches: Sequence[ChangeBatch], source: Source, hash_of: Callable[[TableSchema], str]
) -> pa.Table:
    """Return what is kept of batches beside their rows."""
    packed = [source.pack_positions(batch) for batch in batches]
    columns: list[Any] = [
        [batch.rows.num_rows for batch in batches],
        [json.dumps(dict(batch.end)) for batch in batches],
        [json.dumps(dict(each.header)) for each in packed],
        [each.numbers.ravel() for each in packed],
        [each.numbers.shape[1] for each in packed],
        [batch.nbytes for batch in batches],
        [batch.open_tx for batch in batches],
        [batch.continues for batch in batches],
        [[hash_of(schema) for schema in batch.schemas] for batch in batches],
        [batch.connector for batch in batches],
    ]
    arrays = [pa.array(c, field.type) for c, field in zip(columns, _BATCHES, strict=True)]
    return pa.Table.from_arrays(arrays, schema=_BATCHES)


def to_parquet(table: pa.Table) -> pa.Buffer:
    """Return a table as a Parquet file."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", compression_level=1)
    return sink.getvalue()


def from_parquet(data: bytes) -> pa.Table:
    """Return the table of a Parquet file."""
    return pq.read_table(pa.BufferReader(data))


def restored_batches(
    files: Sequence[pa.Table],
    batches: pa.Table,
    source: Source,
    schema_of: Callable[[str], TableSchema],
) -> Iterator[ChangeBatch]:
    """Yield the batches of one part, as they were.

    Args:
        files: the rows, as they are in files.
        batches: of ``batches_table``.
        source: whose log it is.
        schema_of: returns a table's schema by its hash.
    """
    rows = pa.concat_tables(files) if files else FILE_SCHEMA.empty_table()
    if len(files) > 1:
        rows = rows.take(np.argsort(rows.column(_SEQUENCE).to_numpy(), kind="stable"))
    start = 0
    for kept in batches.to_pylist():
        part = rows.slice(start, kept["rows"])
        start += kept["rows"]
        width = kept["numbers_width"]
        numbers = np.array(kept["numbers"], np.int64).reshape(-1, width or 1)
        end = json.loads(kept["end"])
        packed = PackedPositions(json.loads(kept["positions"]), numbers)
        yield ChangeBatch(
            rows=_change_rows(part),
            positions=source.unpack_positions(packed, end),
            end=end,
            connector=kept["connector"],
            nbytes=kept["nbytes"],
            open_tx=kept["open_tx"],
            continues=kept["continues"],
            schemas=tuple(map(schema_of, kept["schemas"])),
        )


def _change_rows(part: pa.Table) -> pa.RecordBatch:
    arrays = []
    for field in CHANGE_SCHEMA:
        column = part.column(_NAMES.get(field.name, field.name)).combine_chunks()
        if pa.types.is_dictionary(field.type):
            column = column.cast(field.type.value_type).dictionary_encode()
        arrays.append(column.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=CHANGE_SCHEMA)


def schema_text(schema: TableSchema) -> bytes:
    """Return a table's schema as it is kept."""
    return _table_schema.dump_json(schema)


def schema_from(text: bytes) -> TableSchema:
    """Return a table's schema that was kept."""
    return _table_schema.validate_json(text)
