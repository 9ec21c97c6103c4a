"""What a consumer makes of a pipeline's file of events: tables, which a verification reads back.

It applies events as they come. ``rows`` reads it as a function of one's own would; ``lake_rows``
reads it as a table of Spark.
"""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_deltaforge.columns import json_fields
from airflow_provider_deltaforge.engine.verify.sink_rows import TableRequest

_JSON = {"json": "true"}
OPEN: dict[str, "Warehouse"] = {}
"""Those of this process, by name."""


class Warehouse:
    """Tables of one consumer.

    Args:
        path: the pipeline's file.
        keys: columns of the key, by table.
        directory: for files that Spark reads.
    """

    def __init__(self, path: Path, keys: Mapping[str, Sequence[str]], directory: Path) -> None:
        self._path, self._keys, self._directory = path, keys, directory
        self.lock = threading.Lock()
        self.tables: dict[str, dict[str, bytes]] = {table: {} for table in keys}
        """Images of rows, by table and key."""
        self._reached = self._versions = 0

    def advance(self) -> None:
        """Apply the events that came since."""
        with self._path.open("rb") as file, self.lock:
            file.seek(self._reached)
            text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._reached += len(whole)
            lines = whole.splitlines()
            column = pa.array(lines, pa.binary())
            images = json_fields.values(column, json_fields.locate(column, ["after"])).to_pylist()
            for line, image in zip(lines, images, strict=True):
                self._apply(json.loads(line), image)

    def key(self, table: str, row: Mapping[str, Any]) -> str:
        """Return a row's key as events hold it."""
        return json.dumps({name: row[name] for name in self._keys[table]}, separators=(",", ":"))

    def batch(self, table: str) -> pa.RecordBatch:
        """Return a table's rows, each value as JSON."""
        with self.lock:
            images = pa.array(self.tables[table].values(), pa.binary())
        names = list(json.loads(images[0].as_py()))
        spans = json_fields.locate_each(images, [[name] for name in names])
        columns = [json_fields.values(images, found).cast(pa.utf8()) for found in spans]
        fields = [pa.field(name, pa.utf8(), metadata=_JSON) for name in names]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    def write(self, table: str) -> Path:
        """Write a table into a new file of Parquet, and return it."""
        with self.lock:
            self._versions += 1
            path = self._directory / f"{table}-{self._versions}.parquet"
        pq.write_table(pa.Table.from_batches([self.batch(table)]), path)
        return path

    def _apply(self, event: Mapping[str, Any], image: bytes | None) -> None:
        table, before, after = event["source"]["table"], event["before"], event["after"]
        if table not in self._keys:
            return
        held = self.tables[table]
        if before is not None and set(self._keys[table]) <= set(before):
            held.pop(self.key(table, before), None)
        if after is not None:
            assert image is not None
            held[self.key(table, after)] = image


def rows(request: TableRequest, name: str) -> Iterator[pa.RecordBatch]:
    """Yield a table of an open warehouse."""
    warehouse = OPEN[name]
    warehouse.advance()
    yield warehouse.batch(request.name)


def lake_rows(request: TableRequest, name: str) -> Iterator[pa.RecordBatch]:
    """Yield a table of an open warehouse as Spark reads it."""
    from airflow_provider_deltaforge.engine.spark import table_reader

    warehouse = OPEN[name]
    warehouse.advance()
    batch = warehouse.batch(request.name)
    path = str(warehouse.write(request.name))
    yield from table_reader.rows(request, path=path, json=batch.schema.names)
