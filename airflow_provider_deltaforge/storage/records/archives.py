"""Where pipelines have begun to archive their log.

An archive that is not there although it was begun is missed, and not begun anew: its directory may
not be mounted.
"""

import hashlib
from typing import Literal

from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.contract import Put, Store
from airflow_provider_deltaforge.storage.records.record import Record, now_ms


class ArchiveRecord(Record):
    """One place where a pipeline has archived its log."""

    v: Literal[1] = 1
    place: str
    begun_at_ms: int


class ArchiveRecords:
    """The records of one pipeline."""

    def __init__(self, store: Store, pipeline: str) -> None:
        self._store = store
        self._prefix = f"{pipeline}/"

    def was_begun(self, place: str) -> bool:
        """Return whether an archive was begun at a place."""
        return self._store.get(names.ARCHIVES, self._key(place)) is not None

    def begin(self, place: str) -> Put:
        """Return the write that records where an archive is."""
        record = ArchiveRecord(place=place, begun_at_ms=now_ms())
        return Put(names.ARCHIVES, self._key(place), record.model_dump_json().encode())

    def _key(self, place: str) -> str:
        return f"{self._prefix}{hashlib.sha256(place.encode()).hexdigest()[:32]}"
