"""The gates of a filter at work: cheap ones first, and whole columns at a time."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.columns import json_compare_kernel, json_fields
from airflow_provider_deltaforge.columns.value_codes import codes
from airflow_provider_deltaforge.processors.contract import Processed, rejected
from airflow_provider_deltaforge.processors.event_tables import Table, TablePatterns, belonging
from airflow_provider_deltaforge.processors.filter.conditions import RowImages, test_of

if TYPE_CHECKING:
    from airflow_provider_deltaforge.processors.filter.settings import Filter, TableFilter

_OPS = {"create": "c", "update": "u", "delete": "d", "read": "r", "truncate": "t"}
_DDL = "ddl"
_TOO_DEEP = (
    "filter: a condition needs a value that is nested too deep to be compared; name a field inside "
    "it, or compare another column"
)


class FilterWorker:
    """Keeps the events that pass every gate. Events about schemas always do."""

    def __init__(self, settings: "Filter") -> None:
        self._ops = {_OPS[op] for op in settings.ops} | {_DDL} if settings.ops else None
        self._tables = _Gate(settings.tables) if _names_tables(settings.tables) else None
        self._tests = [test_of(condition) for condition in settings.fields]
        self._join = np.logical_and if settings.match == "all" else np.logical_or
        json_fields.warm()
        json_compare_kernel.warm()

    def process(self, rows: pa.RecordBatch) -> Processed:
        """Drop the events that do not pass."""
        passing = np.ones(rows.num_rows, np.bool_)
        if self._ops is not None:
            passing &= _spread(rows["op"], lambda op: op in self._ops)
        if self._tables is not None:
            passing &= self._tables.passing(rows)
        unknown = passing & False
        if self._tests and passing.any():
            self._test(rows, passing, unknown)
        if passing.all():
            return Processed(rows)
        rejections = [rejected(row, _TOO_DEEP) for row in np.flatnonzero(unknown).tolist()]
        kept = np.flatnonzero(passing).astype(np.int32)
        origins = pa.array(kept, pa.int32())
        dropped = len(passing) - len(kept) - len(rejections)
        counts = {"dropped": dropped} if dropped else {}
        return Processed(rows.take(origins), origins, rejections=rejections, counts=counts)

    def close(self) -> None:
        """Nothing is open."""

    def _test(self, rows: pa.RecordBatch, passing: Any, unknown: Any) -> None:
        """Ask the conditions about the rows that pass so far; fill in what cannot be known."""
        before, after, op = rows["before"], rows["after"], rows["op"]
        some = not passing.all()
        if some:
            chosen = pa.array(np.flatnonzero(passing).astype(np.int32), pa.int32())
            before, after, op = (column.take(chosen) for column in (before, after, op))
        images = RowImages(before, after, self._tests)
        found = [test.holds(images) for test in self._tests]
        is_ddl = _spread(op, lambda name: name == _DDL)
        # A value that nobody can read matters only where the other conditions leave it open.
        surely = self._join.reduce([holds & ~unread for holds, unread in found]) | is_ddl
        maybe = self._join.reduce([holds | unread for holds, unread in found]) | is_ddl
        unknown[passing] = maybe & ~surely
        passing[passing] = surely


class _Gate:
    """The tables that pass."""

    def __init__(self, tables: "TableFilter") -> None:
        self._include = TablePatterns(tables.include)
        self._exclude = TablePatterns(tables.exclude) if tables.exclude else None

    def passing(self, rows: pa.RecordBatch) -> Any:
        """Return a bool per row."""
        return belonging(rows, self._passes) | _spread(rows["op"], lambda op: op == _DDL)

    def _passes(self, table: Table) -> bool:
        excluded = self._exclude is not None and self._exclude.take(table)
        return self._include.take(table) and not excluded


def _names_tables(tables: "TableFilter") -> bool:
    return bool(tables.include or tables.exclude)


def _spread(column: pa.DictionaryArray, verdict: Any) -> Any:
    """Return a verdict per row, asked for once per distinct value."""
    verdicts = [bool(verdict(value)) for value in column.dictionary.to_pylist()]
    return np.array([*verdicts, False], np.bool_)[codes(column)]
