"""Tables that are gone from the server whose log is read: later they are no difference.

The registry keeps every table it ever knew. When another server answers, only what that server
lacks and the former one had is a difference.
"""

import json
import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.schemas.registry import Registry
from airflow_provider_deltaforge.sources.contract import Source
from airflow_provider_deltaforge.storage.contract import Write
from airflow_provider_deltaforge.storage.records.failover import Failovers

_DROPS = re.compile(r"\s*DROP\s+TABLE\b", re.IGNORECASE)


class GoneTables:
    """Keeps account of them for one lane, where differences are not adapted to.

    Args:
        source: whose tables.
        registry: the schemas they have had.
        records: where the account is kept.
        wanted: somebody asks for it, so that looking is worth its while.
    """

    def __init__(
        self, source: Source, registry: Registry, records: Failovers, *, wanted: bool
    ) -> None:
        self._source = source
        self._registry = registry
        self._records = records
        self._wanted = wanted
        self._news: set[str] | None = None

    def look(self) -> list[Write]:
        """Return what is to be stored of a server that is known, when its log is opened."""
        self._news = None
        if not self._wanted:
            return []
        stored = [version.schema for version in self._registry.all()]
        live = self._source.catalog(stored) if stored else {}
        gone = {name for name, table in live.items() if table is None}
        return [] if gone == self._records.gone() else [self._records.put_gone(gone)]

    def watch(self, rows: pa.RecordBatch) -> None:
        """Take note of what the log drops or makes."""
        changes = schema_changes(rows) if self._wanted else []
        if not changes:
            return
        former = self._records.gone() if self._news is None else self._news
        gone = set(former)
        for _, change in changes:
            named = set(change.get("tables") or ())
            gone = gone | named if _DROPS.match(str(change.get("sql", ""))) else gone - named
        if gone != former:
            self._news = gone

    def passed(self) -> list[Write]:
        """Return what is to be stored with the next checkpoint."""
        news, self._news = self._news, None
        return [] if news is None else [self._records.put_gone(news)]


def schema_changes(rows: pa.RecordBatch) -> list[tuple[str, Any]]:
    """Return the schema changes among rows, each with its database."""
    if rows.column("ddl").null_count == rows.num_rows:
        return []
    told = rows.filter(pc.equal(rows.column("op").cast(pa.utf8()), "ddl"))
    texts = zip(told.column("db").to_pylist(), told.column("ddl").to_pylist(), strict=True)
    return [(db, json.loads(text or "{}")) for db, text in texts]
