"""Where the rows of a table differ from what the catalog says of it, counted.

A record is about one version of the table's schema under one version of the document: with either
it begins anew, since what differed before says nothing of the present. ``totals`` only rise.

It is written in the transaction that stores the checkpoint behind the events it counts, but not
with each one: a driver that is killed loses some seconds of counts, and none is counted twice.
"""

from collections.abc import Iterable
from typing import Literal

from pydantic import ConfigDict, Field

from airflow_provider_deltaforge.spec.settings import Settings
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.contract import Put, Store
from airflow_provider_deltaforge.storage.records.record import Record


class ColumnDrift(Settings):
    """One column that differs in one way."""

    model_config = ConfigDict(frozen=False)

    column: str
    drift_type: str
    expected: str
    observed: list[str] = Field(default_factory=list)
    count: int = 0
    first_seen_ms: int
    last_seen_ms: int
    samples: list[str] = Field(default_factory=list)
    events_before: int = 0
    """Events of the table that were looked at before the first of these."""


class TableDataDrift(Record):
    """What is known of one table."""

    model_config = ConfigDict(frozen=False)

    v: Literal[1] = 1
    table: str
    """Its full name."""
    fingerprint: str
    """Of the schema that its events were held to."""
    spec_hash: str
    """Of the document that they were processed by."""
    since_ms: int
    """When one of both was new."""
    events_analyzed: int = 0
    events_delivered: int = 0
    """Those of them that left the processors; the others were dropped there."""
    events_with_drift: int = 0
    last_drift_ms: int | None = None
    columns: list[ColumnDrift] = Field(default_factory=list)
    unlisted: int = 0
    """Values of columns that differ, for which there was no room."""
    totals: dict[str, int] = Field(default_factory=dict)
    """Events of all time, by drift type."""
    batches_with_drift: int = 0
    """Of all time."""


class DataDriftRecords:
    """The records of one pipeline."""

    def __init__(self, store: Store, pipeline: str) -> None:
        self._store = store
        self._prefix = f"{pipeline}/"

    def all(self) -> dict[str, TableDataDrift]:
        """Return every table's record, by its full name."""
        found = self._store.items(names.DATA_DRIFT, self._prefix)
        records = [TableDataDrift.from_stored(text, f"the data drift {key}") for key, text in found]
        return {record.table: record for record in records}

    def put(self, records: Iterable[TableDataDrift]) -> list[Put]:
        """Return the writes that keep records."""
        return [
            Put(
                names.DATA_DRIFT, f"{self._prefix}{record.table}", record.model_dump_json().encode()
            )
            for record in records
        ]
