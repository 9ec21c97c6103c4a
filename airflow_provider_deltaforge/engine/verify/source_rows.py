"""Rows of the source's tables as consumers should have them, as states."""

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge import __version__
from airflow_provider_deltaforge.columns import json_fields
from airflow_provider_deltaforge.columns.row_hash_kernel import row_checksums
from airflow_provider_deltaforge.columns.value_codes import combinations
from airflow_provider_deltaforge.engine.base.processor_stats import ProcessorStats
from airflow_provider_deltaforge.engine.render.render_stage import chain_of
from airflow_provider_deltaforge.engine.render.renderer import Renderer
from airflow_provider_deltaforge.engine.verify.message_rows import (
    MessageRows,
    VerifiedTable,
    keys_of,
    row_ids,
)
from airflow_provider_deltaforge.engine.verify.row_states import DROPPED, states
from airflow_provider_deltaforge.envelopes.contract import Origin
from airflow_provider_deltaforge.events.change import TEXT, ChangeBatch
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.sources.contract import TableChunk
from airflow_provider_deltaforge.sources.shared.change_rows import change_rows
from airflow_provider_deltaforge.spec.document import Pipeline

UNVERIFIED = -1
"""Stands for captured tables that are not verified."""

_KEYS_AT_ONCE = 200
_RUN = "verify"  # Seeds event ids, which nobody sees.

_log = logging.getLogger(__name__)


class _ErrorLog:
    """Hears of processors that fail."""

    def report_processor_error(self, processor_id: str, error: BaseException | None) -> None:
        if error is not None:
            _log.warning("verification: processor %s: %s", processor_id, type(error).__name__)


@dataclass(frozen=True, slots=True)
class SourceRow:
    """One row as it was read again.

    Attributes:
        content: its checksum.
        after: its image as JSON text.
        is_dropped: processors do not let it through.
    """

    content: int
    after: bytes
    is_dropped: bool


@dataclass
class SourceRows:
    """Reads the source's tables through the pipeline's processors. Used by one thread.

    Args:
        pipeline: the document, expanded.
        sink_ids: the sinks whose destinations matter.
        is_ending: asked while a processor is tried again; True gives up.

    Attributes:
        topics: by sink and destination, the tables whose rows go there.
        keyed_by_processor: tables whose messages' keys a processor sets.
        renamed_keys: tables whose keys in events are not those of their rows.
        rekeyed_images: tables whose row images show other keys than their events have.
    """

    pipeline: Pipeline
    sink_ids: Collection[str]
    is_ending: Callable[[], bool]
    topics: dict[str, dict[str, set[int]]] = field(default_factory=dict)
    keyed_by_processor: set[int] = field(default_factory=set)
    renamed_keys: set[int] = field(default_factory=set)
    rekeyed_images: set[int] = field(default_factory=set)
    _has_others: bool = False
    _moves_rows: bool = False

    def __post_init__(self) -> None:
        """Open the processors and a connection for reading tables."""
        meta, source = self.pipeline.metadata, self.pipeline.spec.source
        origin = Origin(meta.name, meta.tenant, source.connector, __version__, source.type_system)
        chosen = [sink for sink in self.pipeline.spec.sinks if sink.id in self.sink_ids]
        self.topics = {sink.id: defaultdict(set) for sink in chosen}
        self._renderers = {
            sink.id: Renderer(sink, origin, sharding=self.pipeline.spec.sharding) for sink in chosen
        }
        self._chain = chain_of(self.pipeline, ProcessorStats(), _ErrorLog(), self.is_ending)
        self._snapshotter = source.open_snapshot()
        try:
            self._chain.open()
        except BaseException:
            self._snapshotter.close()
            raise

    def close(self) -> None:
        """Close the connection and the processors. Safe to call twice."""
        try:
            self._snapshotter.close()
        finally:
            self._chain.close()

    def plan(self, patterns: Sequence[str]) -> dict[str, list[TableChunk]]:
        """Return the chunks of captured tables by the table's full name.

        Raises:
            SpecError: a pattern names none of them.
        """
        planned: defaultdict[str, list[TableChunk]] = defaultdict(list)
        chunk_rows = self.pipeline.spec.source.snapshot.chunk_size
        for chunk in self._snapshotter.plan(chunk_rows, list(patterns)):
            planned[chunk.full_name].append(chunk)
        return dict(planned)

    def place(self, schema: TableSchema, number: int) -> None:
        """Note where a table's rows go, also if it has none now.

        Args:
            schema: of the table.
            number: as in ``VerifiedTable``; ``UNVERIFIED`` for other captured tables.
        """
        self._has_others |= number == UNVERIFIED
        row = {"op": "r", "db": schema.db, "schema": schema.schema, "table": schema.table}
        columns: dict[str, Any] = {
            name: pa.array([value], pa.utf8()).dictionary_encode().cast(TEXT)
            for name, value in row.items()
            if value is not None
        }
        zero = pa.array([0], pa.int32())
        columns |= {"after": pa.array([b"{}"], pa.binary()), "tx": zero, "row": zero}
        columns |= {"ts_ms": pa.array([0], pa.int64()), "tx_end": pa.array([True])}
        columns["event_id"] = pa.array([bytes(16)], pa.binary(16))
        self._note_topics(number, change_rows(1, columns))

    @property
    def mixes_tables(self) -> bool:
        """Whether events of the verified tables may be of other tables' rows.

        Of tables that are not read it is not known what a processor calls their rows.
        """
        processors = self.pipeline.spec.processors
        can_move = not all(processor.keeps_tables for processor in processors)
        return self._moves_rows or (can_move and self._has_others)

    def keyed_otherwise(self, held: MessageRows) -> Collection[int]:
        """Return the tables whose rows a sink's messages do not name by their keys."""
        return self.keyed_by_processor if held.by_message_key else self.rekeyed_images

    def topics_of(self, sink_id: str) -> dict[str, set[int]]:
        """Return the destinations of verified tables' rows, and all tables whose rows go there."""
        return {
            topic: numbers
            for topic, numbers in self.topics[sink_id].items()
            if numbers != {UNVERIFIED}
        }

    def settle(self) -> None:
        """Return when views that open from now on contain all that sinks may hold by now."""
        self._snapshotter.settle()

    def read(self, table: VerifiedTable, chunk: TableChunk) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the number of rows that were read, and their states."""
        for batch in self._snapshotter.read(chunk, _RUN):
            rows, dropped = self._processed(table, batch)
            yield batch.rows.num_rows, _states(table, rows, dropped)

    def read_again(
        self, table: VerifiedTable, chunk: TableChunk, keys: Collection[bytes]
    ) -> dict[bytes, SourceRow]:
        """Return rows by their keys in events, from views that are opened now."""
        found: dict[bytes, SourceRow] = {}
        self.settle()
        for part in self._chunks_of(table, chunk, sorted(keys)):
            for batch in self._snapshotter.read(part, _RUN):
                rows, dropped = self._processed(table, batch)
                _collect(rows, dropped, keys, found)
        return found

    def _chunks_of(
        self, table: VerifiedTable, chunk: TableChunk, keys: Sequence[bytes]
    ) -> Iterator[TableChunk]:
        if table.number not in self.renamed_keys:
            parsed = [_key_members(key) for key in keys]
            known = [key for key in parsed if key is not None]
            writable = not any(
                isinstance(value, Decimal | list) for key in known for value in key.values()
            )
            source = self.pipeline.spec.source
            parts = [
                source.chunk_of_keys(chunk, table.schema, known[first : first + _KEYS_AT_ONCE])
                for first in range(0, len(known) if writable else 0, _KEYS_AT_ONCE)
            ]
            if writable and all(part is not None for part in parts):
                yield from parts
                return
        chunk_rows = self.pipeline.spec.source.snapshot.chunk_size
        for part in self._snapshotter.plan(chunk_rows, [table.name]):
            if part.full_name == table.name:
                yield part

    def _processed(
        self, table: VerifiedTable, batch: ChangeBatch
    ) -> tuple[pa.RecordBatch, pa.BinaryArray]:
        """Return the events that leave the processors, and the keys of rows that do not."""
        done = self._chain.process(batch.rows)
        rows = done.rows
        count = batch.rows.num_rows
        origins = np.arange(count) if done.origins is None else np.asarray(done.origins)
        own = np.flatnonzero(
            np.asarray(pc.and_(rows["synthetic"].is_null(), rows["key"].is_valid()))
            & np.asarray(rows["after"].is_valid())
        )
        rows, origins = rows.take(pa.array(own)), origins[own]
        kept = np.zeros(count, np.bool_)
        kept[origins] = True
        before = batch.rows["key"]
        if rows.num_rows:
            self._note_topics(table.number, rows)
            former = before.take(pa.array(origins))
            if pc.any(pc.not_equal(former, rows["key"]), min_count=0).as_py():
                self.renamed_keys.add(table.number)
            routing = rows["routing"]
            if routing.null_count < len(routing):
                chosen = routing.flatten()[routing.type.get_field_index("key")]
                if chosen.null_count < len(chosen):
                    self.keyed_by_processor.add(table.number)
            if done.rows is not batch.rows:
                self._note_names(table, rows)
        lost = before.take(pa.array(np.flatnonzero(~kept)))
        return rows, lost.filter(lost.is_valid())

    def _note_names(self, table: VerifiedTable, rows: pa.RecordBatch) -> None:
        """Note what processors made of the rows' table and key."""
        schema = table.schema
        _, places = combinations([rows[name] for name in ("db", "schema", "table")])
        names = {(among or db, name) for db, among, name in places}
        self._moves_rows |= names != {(schema.schema or schema.db, schema.table)}
        spans = json_fields.locate_each(rows["after"], [[name] for name in schema.primary_key])
        shown = keys_of(rows["after"], schema.primary_key, spans)
        if not pc.all(pc.equal(shown, rows["key"]), skip_nulls=False).as_py():
            self.rekeyed_images.add(table.number)

    def _note_topics(self, number: int, rows: pa.RecordBatch) -> None:
        for sink_id, renderer in self._renderers.items():
            topics = renderer.topics(rows)
            for topic in topics.dictionary.take(topics.indices.unique()).to_pylist():
                if topic:
                    self.topics[sink_id][topic].add(number)


def _states(table: VerifiedTable, rows: pa.RecordBatch, dropped: pa.BinaryArray) -> pa.RecordBatch:
    content, _, _ = row_checksums(rows["after"])
    keys = pa.concat_arrays([rows["key"], dropped])
    flags = np.zeros(len(keys), np.uint8)
    flags[rows.num_rows :] = DROPPED
    return states(
        {
            "id": row_ids(table.number, keys),
            "content": np.concatenate([content, np.zeros(len(dropped), np.uint64)]),
            "order": np.arange(len(keys)),
            "table": np.full(len(keys), table.number, np.int32),
            "flags": flags,
            "key": keys,
        },
        len(keys),
    )


def _collect(
    rows: pa.RecordBatch,
    dropped: pa.BinaryArray,
    keys: Collection[bytes],
    found: dict[bytes, SourceRow],
) -> None:
    wanted = pa.array(sorted(keys), pa.binary())
    mine = rows.filter(pc.is_in(rows["key"], wanted))
    content, _, _ = row_checksums(mine["after"])
    for key, checksum, after in zip(
        mine["key"].to_pylist(), content.tolist(), mine["after"].to_pylist(), strict=True
    ):
        found[key] = SourceRow(checksum, after, is_dropped=False)
    for key in dropped.filter(pc.is_in(dropped, wanted)).to_pylist():
        found[key] = SourceRow(0, b"", is_dropped=True)


def _key_members(key: bytes) -> Mapping[str, Any] | None:
    """Return a key's members; None for what can be no row's key."""
    try:
        members = json.loads(key, parse_float=Decimal, parse_constant=Decimal)
    except (ValueError, RecursionError):
        return None
    return members if isinstance(members, dict) else None
