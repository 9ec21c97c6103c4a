"""Rows that sinks hold and their table does not: deletes that were passed over.

Messages are read back as a verification reads them, but only those of this pipeline count: what is
found here is deleted without anybody having looked at it.
"""

import logging
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from airflow_provider_deltaforge.engine.render.route_templates import is_placed_by_key
from airflow_provider_deltaforge.engine.verify.message_rows import VerifiedTable
from airflow_provider_deltaforge.engine.verify.row_states import (
    StateFiles,
    compared,
    each_bucket,
    latest,
)
from airflow_provider_deltaforge.engine.verify.sink_rows import (
    MessageSink,
    open_messages,
    why_no_messages,
)
from airflow_provider_deltaforge.engine.verify.source_rows import UNVERIFIED, SourceRows
from airflow_provider_deltaforge.errors import FatalError, SpecError
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.sources.contract import TableChunk
from airflow_provider_deltaforge.spec.document import Pipeline
from airflow_provider_deltaforge.telemetry.redaction import redacted

_log = logging.getLogger(__name__)


def extra_rows(
    pipeline: Pipeline,
    sink_ids: Collection[str],
    chunks: Mapping[str, Sequence[TableChunk]],
    check: Callable[[], None],
) -> tuple[Mapping[str, Sequence[str]], Sequence[str]]:
    """Find rows that some sink holds and their table does not.

    Nothing may be written of these tables meanwhile.

    Args:
        pipeline: the document, expanded.
        sink_ids: the sinks to look into.
        chunks: all chunks of each table.
        check: called often; raises to end it.

    Returns:
        (keys by table, as events have them; what could not be looked at, for people).

    Raises:
        RetryableError: a sink or the source is away.
        DeltaForgeError: the source cannot be read.
    """
    search = _Search(pipeline, sink_ids, chunks, check)
    with ExitStack() as stack:
        return search.found(stack), search.notes


class _Search:
    def __init__(
        self,
        pipeline: Pipeline,
        sink_ids: Collection[str],
        chunks: Mapping[str, Sequence[TableChunk]],
        check: Callable[[], None],
    ) -> None:
        self._pipeline, self._chunks, self._check = pipeline, chunks, check
        self._sinks = [sink for sink in pipeline.spec.sinks if sink.id in sink_ids]
        self.notes: list[str] = []

    def found(self, stack: ExitStack) -> Mapping[str, Sequence[str]]:
        readable = []
        for sink in self._sinks:
            reason = why_no_messages(sink)
            if reason is None:
                readable.append(sink)
            else:
                self.notes.append(f"sink {sink.id}: {reason}")
        if not readable:
            return {}
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="deltaforge-")))
        source = SourceRows(self._pipeline, [sink.id for sink in readable], self._is_ending)
        stack.callback(source.close)
        try:
            tables = self._tables(source)
        except SpecError as error:  # It cannot list its tables.
            self.notes.append(redacted(str(error)))
            return {}
        files = StateFiles(directory / "source")
        if not self._read_tables(source, tables, files):
            names = ", ".join(table.name for table in tables)
            self.notes.append(f"a processor may give rows of other tables the name of {names}")
            return {}
        opened: list[MessageSink] = []
        for number, sink in enumerate(readable):
            rows = self._read(sink, source, tables, directory / str(number), stack)
            if rows is not None:
                opened.append(rows)
        return self._compared(source, tables, files, opened)

    def _read_tables(
        self, source: SourceRows, tables: Sequence[VerifiedTable], files: StateFiles
    ) -> bool:
        """Read all rows; return False if sinks may hold other tables' rows under these names."""
        for table in tables if not source.mixes_tables else ():
            for chunk in self._chunks[table.name]:
                for _, states in source.read(table, chunk):
                    self._check()
                    files.add(states)
        return not source.mixes_tables

    def _is_ending(self) -> bool:
        try:
            self._check()
        except Exception:  # noqa: BLE001 - whatever ends it
            return True
        return False

    def _tables(self, source: SourceRows) -> list[VerifiedTable]:
        tables: list[VerifiedTable] = []
        names = Counter(map(_plain_name, schemas := self._pipeline.spec.source.describe()))
        for schema in schemas:
            number = UNVERIFIED
            if schema.full_name in self._chunks:
                reason = self._why_not(schema)
                if names[_plain_name(schema)] > 1:  # Some envelopes have no other name.
                    reason = "is written like another table's name"
                if reason is None:
                    number = len(tables)
                    tables.append(VerifiedTable(number, schema))
                else:
                    self.notes.append(f"table {schema.full_name} {reason}")
            source.place(schema, number)
        gone = self._chunks.keys() - {schema.full_name for schema in schemas}
        self.notes.extend(f"table {name} is gone" for name in sorted(gone))
        return tables

    def _why_not(self, schema: TableSchema) -> str | None:
        """Return why a table's deletes cannot be made; None: they can."""
        if not schema.primary_key:
            return "has no key, so its rows cannot be compared"
        for sink in self._sinks:
            if not is_placed_by_key(sink, self._pipeline.spec.sharding, schema):
                return f"has rows that sink {sink.id} sends to a place that the key does not name"
        return None

    def _read(
        self,
        sink: Any,
        source: SourceRows,
        tables: Sequence[VerifiedTable],
        directory: Path,
        stack: ExitStack,
    ) -> MessageSink | None:
        """Return what a sink holds; None where it does not let itself be read."""
        name, files = self._pipeline.name, StateFiles(directory)
        try:
            rows = open_messages(sink, name, tables, files, self._check, own_only=True)
            stack.callback(rows.close)
            rows.read(source.topics_of(sink.id), late=False)
        except (FatalError, SpecError) as error:
            self._check()  # Its own errors end everything.
            self.notes.append(f"sink {sink.id}: {redacted(str(error))}")
            return None
        self.notes.extend(f"sink {sink.id}: {note}" for note in rows.reader.notes)
        return rows

    def _compared(
        self,
        source: SourceRows,
        tables: Sequence[VerifiedTable],
        files: StateFiles,
        opened: Sequence[MessageSink],
    ) -> dict[str, list[str]]:
        chosen = {table.number: table for table in tables}
        for number in source.renamed_keys:
            self.notes.append(
                f"table {chosen.pop(number).name}: a processor changes its rows' keys"
            )
        found: dict[int, dict[bytes, None]] = {number: {} for number in chosen}
        row_keys: dict[int, bytes] = {}
        for own, *held in each_bucket([files, *(rows.files for rows in opened)]):
            own_rows = latest(own)
            numbers, first = np.unique(own_rows["table"].to_numpy(), return_index=True)
            row_keys |= zip(numbers.tolist(), own_rows["key"].take(first).to_pylist(), strict=True)
            for rows, bucket in zip(opened, held, strict=True):
                self._check()
                both = compared(own_rows, rows.latest(bucket))
                extra = both.differs & (both.source < 0) & (both.sink >= 0)
                keyed = source.keyed_otherwise(rows.rows)
                for number in found.keys() - keyed:
                    mine = np.flatnonzero(extra & (both.tables == number))
                    found[number] |= dict.fromkeys(both.keys.take(pa.array(mine)).to_pylist())
        keyed = source.keyed_by_processor | source.rekeyed_images
        self.notes.extend(
            f"table {chosen[number].name}: a processor sets the keys that messages show"
            for number in sorted(keyed & chosen.keys())
        )
        deletes = {
            table.name: self._fitting(table, found[number], row_keys.get(number))
            for number, table in chosen.items()
        }
        return {name: keys for name, keys in deletes.items() if keys}

    def _fitting(
        self, table: VerifiedTable, keys: Collection[bytes], row_key: bytes | None
    ) -> list[str]:
        """Return the keys that rows of a table could have as it is now.

        Of others an encoding may know no type, and a consumer that finds one equal to the key of a
        row could take the row away: they may lie in different partitions.
        """
        shape = None if row_key is None else _shape(row_key)
        fitting = []
        for key in keys:
            members = _shape(key)
            if {*members} == {*table.schema.primary_key} and shape in (None, members):
                fitting.append(key.decode())
        if len(fitting) < len(keys):
            count = len(keys) - len(fitting)
            self.notes.append(f"table {table.name}: {count} keys in sinks have a former shape")
        return sorted(fitting)


def _plain_name(schema: TableSchema) -> str:
    return f"{schema.schema or schema.db}.{schema.table}"


def _shape(key: bytes) -> Mapping[str, str]:
    """Return the kind of each member of a key; nothing of one that is no JSON object."""
    try:
        members = orjson.loads(key)
    except ValueError:
        return {}
    kinds = {int: "number", float: "number"}
    pairs = members.items() if isinstance(members, dict) else ()
    return {name: kinds.get(type(value), type(value).__name__) for name, value in pairs}
