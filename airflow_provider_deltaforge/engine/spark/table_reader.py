"""A reader for ``verify.reader``: tables that Spark can read, where consumers put events."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_deltaforge.engine.verify.sink_rows import TableRequest
from airflow_provider_deltaforge.errors import SpecError

_JSON = {"json": "true"}


def rows(
    request: TableRequest,
    table: str | None = None,
    path: str | None = None,
    format: str = "parquet",
    select: Sequence[str] = (),
    json: Sequence[str] = (),
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table, partition by partition, in Arrow.

    It uses the session of this process, and makes one where there is none; its own settings
    (``spark.master``, catalogs) come from Spark's configuration.

    Args:
        request: what is verified; ``{table}``, ``{db}``, ``{schema}`` and ``{name}`` in ``table``
            and ``path`` stand for its parts.
        table: a table of a catalog; or
        path: where the data lies, in
        format: ``parquet``, ``delta`` and so on.
        select: SQL expressions for the columns that events have; all columns if empty.
        json: columns of texts that hold JSON as events show it.

    Raises:
        SpecError: both or neither of ``table`` and ``path`` are given.
    """
    if (table is None) == (path is None):
        raise SpecError("verify.options: give either `table` or `path`")
    spark = SparkSession.builder.appName("deltaforge verify").getOrCreate()
    place = (table or path or "").format(
        table=request.table, db=request.db, schema=request.schema, name=request.name
    )
    frame = spark.table(place) if path is None else spark.read.format(format).load(place)
    if select:
        frame = frame.selectExpr(*select)
    for batch in _batches(frame):
        fields = [
            field.with_metadata(_JSON) if field.name in json else field for field in batch.schema
        ]
        yield pa.RecordBatch.from_arrays(batch.columns, schema=pa.schema(fields))


def _batches(frame: DataFrame) -> Iterator[pa.RecordBatch]:
    """Yield a frame's batches; each travels as one row, so that none is made of objects."""
    packed = frame.mapInArrow(_packed, "batch binary")
    for row in packed.toLocalIterator(prefetchPartitions=False):
        with pa.ipc.open_stream(row["batch"]) as reader:
            yield from reader


def _packed(batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        packed = pa.array([sink.getvalue().to_pybytes()], pa.binary())
        yield pa.RecordBatch.from_arrays([packed], ["batch"])
