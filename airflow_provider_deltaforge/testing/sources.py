"""What every source promises, as tests to inherit."""

import json
import pickle
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from airflow_provider_deltaforge.engine.archive.tables import (
    batches_table,
    from_parquet,
    restored_batches,
    schema_from,
    schema_text,
    split_by_table,
    to_parquet,
)
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA, ChangeBatch, Position
from airflow_provider_deltaforge.sources.contract import Source

_PATIENCE_S = 180.0
"""Ends a hang; far more than a slow machine needs."""
_VERDICTS = frozenset({"ok", "warn", "high_risk", "fail"})
_COMPARED = ("event_id", "op", "db", "schema", "table", "before", "after", "key", "tx_end", "row")


def read_batches(source: Source, start: Position) -> Iterator[ChangeBatch]:
    """Yield the log from ``start`` to where it ends now.

    Each segment travels through pickle, and each position through JSON, as between processes.
    """
    end = source.head()
    reader = source.open(_stored(start))
    deadline = time.monotonic() + _PATIENCE_S
    position = start
    try:
        while source.compare(position, end) < 0:
            assert time.monotonic() < deadline, f"the log was read to {position}, not to {end}"
            segment = reader.read(0.5)
            if segment is not None:
                assert segment.nbytes >= 0
                batch = reader.decode(pickle.loads(pickle.dumps(segment)))
                position = _stored(batch.end)
                yield batch
    finally:
        reader.close()


def read_events(source: Source, start: Position) -> list[dict[str, Any]]:
    """Return the events from ``start`` to where the log ends now, as dictionaries."""
    return [event for batch in read_batches(source, start) for event in batch.rows.to_pylist()]


class SourceContract:
    """Inherit, and define these fixtures, in the class or in its module.

    - ``source``: the description, opened several times; its tables hold rows, and nobody writes
      while a test runs.
    - ``start``: a position in the log with at least three transactions of captured rows behind it.
      Mostly: take ``source.beginning()``, commit three transactions, return what was taken.
    """

    def test_description_travels_to_another_process(self, source: Source) -> None:
        assert pickle.loads(pickle.dumps(source)) == source

    def test_the_preflight_finds_nothing_that_fails(self, source: Source, start: Position) -> None:
        findings = source.preflight()

        assert {finding.verdict for finding in findings} <= _VERDICTS
        assert [finding for finding in findings if finding.verdict == "fail"] == []

    def test_events_have_the_columns_of_changes(self, source: Source, start: Position) -> None:
        batches = list(read_batches(source, start))

        assert all(batch.rows.schema.equals(CHANGE_SCHEMA) for batch in batches)
        assert {batch.connector for batch in batches} == {source.connector}
        for batch in batches:
            known = {schema.fingerprint for schema in batch.schemas}
            assert set(batch.rows["schema_version"].to_pylist()) - {None} <= known

    def test_images_and_keys_are_json(self, source: Source, start: Position) -> None:
        for event in read_events(source, start):
            images = [event[name] for name in ("before", "after", "key")]
            assert all(isinstance(json.loads(image), dict) for image in images if image)

    def test_every_transaction_ends(self, source: Source, start: Position) -> None:
        events = read_events(source, start)

        assert sum(event["tx_end"] for event in events) >= 3
        assert events[-1]["tx_end"]

    def test_what_is_read_again_is_the_same(self, source: Source, start: Position) -> None:
        events = read_events(source, start)

        assert len({event["event_id"] for event in events}) == len(events)
        assert _compared(read_events(source, start)) == _compared(events)

    def test_reading_goes_on_behind_any_transaction(self, source: Source, start: Position) -> None:
        events, stops = [], []
        for batch in read_batches(source, start):
            for event in batch.rows.to_pylist():
                events.append(event)
                if event["tx_end"]:
                    stops.append((len(events), batch.positions.after(event["tx"])))

        for count, position in stops[:-1]:
            assert _compared(read_events(source, position)) == _compared(events[count:])

    def test_what_is_archived_is_what_was_read(self, source: Source, start: Position) -> None:
        batches = list(read_batches(source, start))
        schemas = {schema_text(schema).hex(): schema for b in batches for schema in b.schemas}
        files = [from_parquet(to_parquet(each.rows)) for each in split_by_table(batches)]
        kept = from_parquet(
            to_parquet(batches_table(batches, source, lambda schema: schema_text(schema).hex()))
        )
        restored = list(restored_batches(files, kept, source, schemas.__getitem__))

        assert len(restored) == len(batches)
        for read, again in zip(batches, restored, strict=True):
            assert again.rows.to_pylist() == read.rows.to_pylist()
            assert again.rows.schema.equals(CHANGE_SCHEMA)
            assert _stored(again.end) == _stored(read.end)
            assert again.schemas == read.schemas
            flags = ("connector", "nbytes", "open_tx", "continues")
            assert all(getattr(again, flag) == getattr(read, flag) for flag in flags)
            for tx in set(read.rows["tx"].to_pylist()):
                assert _stored(again.positions.after(tx)) == _stored(read.positions.after(tx))
            if read.rows.num_rows:
                shown = [source.visible(read.end, each).tolist() for each in (read, again)]
                assert shown[0] == shown[1]
        assert all(schema_from(bytes.fromhex(text)) == s for text, s in schemas.items())

    def test_positions_have_an_order(self, source: Source, start: Position) -> None:
        head = source.head()

        assert source.compare(_stored(start), head) == -1
        assert source.compare(head, _stored(start)) == 1
        assert source.compare(head, _stored(head)) == 0
        assert source.covers(head, start)
        assert not source.covers(start, head)
        assert source.earliest([head, start]) == start

    def test_nothing_old_comes_at_the_head(self, source: Source, start: Position) -> None:
        reader = source.open(source.head())
        try:
            segments = [segment for _ in range(3) if (segment := reader.read(0.1)) is not None]
            assert sum(reader.decode(segment).rows.num_rows for segment in segments) == 0
        finally:
            reader.close()

    def test_an_acknowledged_log_can_be_followed(self, source: Source, start: Position) -> None:
        head = source.head()
        reader = source.open(head)
        reader.acknowledge(_stored(head))
        reader.close()
        reader.close()

        assert read_events(source, head) == []

    def test_a_snapshot_holds_rows_behind_its_beginning(
        self, source: Source, start: Position
    ) -> None:
        snapshotter = source.open_snapshot()
        begin = _stored(snapshotter.begin())
        chunks = list(snapshotter.plan(2))
        events: list[dict[str, Any]] = []
        for chunk in chunks:
            assert json.loads(json.dumps(dict(chunk.bounds))) == dict(chunk.bounds)
            for batch in snapshotter.read(pickle.loads(pickle.dumps(chunk)), "run"):
                assert source.compare(_stored(batch.end), begin) >= 0
                events += batch.rows.to_pylist()
        snapshotter.guard(begin)
        snapshotter.close()
        snapshotter.close()

        assert len({chunk.id for chunk in chunks}) == len(chunks)
        assert {event["op"] for event in events} <= {"r"}
        assert len({event["event_id"] for event in events}) == len(events)
        assert {event["table"] for event in events} <= {chunk.table for chunk in chunks}

    def test_a_table_that_is_not_there_is_no_plan(self, source: Source, start: Position) -> None:
        snapshotter = source.open_snapshot()
        try:
            with pytest.raises(SpecError):
                list(snapshotter.plan(10, ["nowhere.no_such_table"]))
        finally:
            snapshotter.close()


def _stored(position: Position) -> Position:
    """Return a position as it comes back from the state store."""
    stored: Position = json.loads(json.dumps(dict(position)))
    return stored


def _compared(events: list[Mapping[str, Any]] | list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [tuple(event[name] for name in _COMPARED) for event in events]
