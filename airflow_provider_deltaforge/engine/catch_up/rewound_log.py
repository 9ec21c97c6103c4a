"""The log that a rewind delivers again: up to the sink's former position, only of its tables."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.columns.value_codes import combinations
from airflow_provider_deltaforge.engine.catch_up.snapshot_seam import without_rows
from airflow_provider_deltaforge.events.change import OUTBOX, ChangeBatch, Position
from airflow_provider_deltaforge.sources.contract import Source
from airflow_provider_deltaforge.spec.patterns import TableMatcher
from airflow_provider_deltaforge.storage.records.rewinds import Rewind


class RewoundLog:
    """Leaves out changes of tables that a rewind does not select. Used by one thread.

    Args:
        source: compares positions.
        rewind: which tables' changes are delivered again, and up to where; None: all of them.
        start: where the log is read from.
    """

    def __init__(self, source: Source, rewind: Rewind | None, start: Position) -> None:
        self._covers = source.covers
        self._end = start
        is_limited = rewind is not None and bool(rewind.tables)
        self._until = rewind.until if rewind is not None and is_limited else None
        self._matcher = TableMatcher(tuple(rewind.tables) if rewind is not None else ())

    def places(self, end: Position) -> list[Position]:
        """Return where a batch behind ``end`` has to be cut, because other tables begin there."""
        return [] if self._until is None or self._covers(end, self._until) else [self._until]

    def admit(self, batch: ChangeBatch) -> ChangeBatch:
        """Return a batch of the log without changes that the sink has and is not to get again."""
        begun, self._end = self._end, batch.end
        if self._until is None or self._covers(begun, self._until) or not batch.rows.num_rows:
            return batch
        left_out = ~self._selected(batch.rows)
        if not self._covers(self._until, batch.end):
            left_out &= ~self._behind(batch, begun)
        return replace(batch, rows=without_rows(batch.rows, left_out)) if left_out.any() else batch

    def _behind(self, batch: ChangeBatch, begun: Position) -> "np.typing.NDArray[np.bool_]":
        """Return which rows belong to transactions behind the sink's former position."""
        assert self._until is not None  # noqa: S101 - asked above
        transactions = batch.rows["tx"].to_numpy()
        behind = []
        for ordinal in np.unique(transactions).tolist():
            before = begun if ordinal == 0 else batch.positions.after(ordinal - 1)
            if self._covers(before, self._until):
                behind.append(ordinal)
        return np.isin(transactions, behind)

    def _selected(self, rows: pa.RecordBatch) -> "np.typing.NDArray[np.bool_]":
        codes, names = combinations([rows[name] for name in ("op", "db", "schema", "table")])
        is_selected = np.array([self._matches(*name) for name in names], np.bool_)
        selected: np.typing.NDArray[np.bool_] = is_selected[codes]
        ops = np.array([name[0] == "ddl" for name in names], np.bool_)
        for at in np.flatnonzero(ops[codes]).tolist():
            tables = json.loads(rows["ddl"][at].as_py() or b"{}").get("tables") or ()
            selected[at] = any(map(self._matcher.matches_full, tables))
        return selected

    def _matches(self, op: str, db: str, schema: str | None, table: str) -> bool:
        del op
        qualifier = db if schema is None or schema == OUTBOX else schema
        return self._matcher.matches(qualifier, table)
