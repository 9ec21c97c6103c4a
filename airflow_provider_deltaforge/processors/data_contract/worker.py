"""Holding batches to a data contract."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.errors import EventError
from airflow_provider_deltaforge.processors.contract import Processed, rejected
from airflow_provider_deltaforge.processors.data_contract.columns import broken
from airflow_provider_deltaforge.processors.data_contract.schema import RowSchema
from airflow_provider_deltaforge.processors.data_contract.settings import (
    Action,
    ColumnRule,
    DataContract,
    TableRule,
)
from airflow_provider_deltaforge.processors.event_tables import TablePatterns, full_name, tables_of
from airflow_provider_deltaforge.processors.json_objects import wide_integers

_CHECKED = pa.array(["c", "u", "r"])
_TOLD = 5


@dataclass(frozen=True, slots=True)
class _Rules:
    """The rules of one entry, ready to be used."""

    name: str
    tables: TablePatterns
    columns: dict[str, ColumnRule]
    schema: RowSchema | None
    action: Action


class ContractWorker:
    """Checks the new image of each event; deletes and truncates have none."""

    def __init__(self, contract: DataContract) -> None:
        self._rules = [_ready(rule, contract.on_violation) for rule in contract.tables]

    def process(self, rows: pa.RecordBatch) -> Processed:
        """Return the events that keep the contract, and those that break it as it says.

        Raises:
            EventError: one breaks a rule that blocks.
        """
        tables, index = tables_of(rows)
        found = _Found([full_name(table) for table in tables], index)
        has_image = pc.and_(
            rows.column("after").is_valid(), pc.is_in(rows.column("op").cast(pa.utf8()), _CHECKED)
        ).to_numpy(zero_copy_only=False)
        for rule in self._rules:
            mine = np.array([rule.tables.take(table) for table in tables], np.bool_)
            own = np.nonzero(has_image & mine[index])[0]
            if len(own):
                images = rows.column("after")
                whole = len(own) == rows.num_rows
                _check(images if whole else images.take(pa.array(own)), own, rule, found)
        return found.processed(rows)

    def close(self) -> None:
        """Nothing is held."""


class _Found:
    """What breaks the contract in one batch.

    Args:
        tables: names of the batch's tables.
        index: int array per row, its table among them.
    """

    def __init__(self, tables: list[str], index: Any) -> None:
        self._tables = tables
        self._index = index
        self._counts: dict[str, int] = defaultdict(int)
        self._blocked: list[tuple[int, str]] = []
        self._reasons: dict[int, list[str]] = defaultdict(list)

    def add(self, rule: _Rules, rows: Any, name: str, what: str) -> None:
        """Note the rows that break one rule.

        Args:
            rule: the entry it belongs to.
            rows: int array, rows of the batch; at least one.
            name: the rule's name in metrics.
            what: the same for people, without the table.
        """
        self._counts[f"violations:{name}"] += len(rows)
        if rule.action == "count":
            return
        for row in rows.tolist():
            reason = f"table {self._tables[self._index[row]]}, {what}"
            if rule.action == "block":
                self._blocked.append((row, reason))
            else:
                self._reasons[row].append(reason)

    def processed(self, rows: pa.RecordBatch) -> Processed:
        if self._blocked:
            _, reason = min(self._blocked)
            count = len({row for row, _ in self._blocked})
            raise EventError(
                f"{count} of {rows.num_rows} events break the contract, the first: {reason}. "
                "Nothing of the batch was delivered: correct the rows or the contract, then start "
                "again"
            )
        if not self._reasons:
            return Processed(rows, counts=dict(self._counts))
        rejections = [
            rejected(row, "; ".join(reasons[:_TOLD]))
            for row, reasons in sorted(self._reasons.items())
        ]
        kept = np.ones(rows.num_rows, np.bool_)
        kept[list(self._reasons)] = False
        return Processed(
            rows.filter(pa.array(kept)),
            pa.array(np.nonzero(kept)[0].astype(np.int32)),
            None,
            rejections,
            dict(self._counts),
        )


def _ready(rule: TableRule, action: Action) -> _Rules:
    schema = None if rule.json_schema is None else RowSchema(rule.json_schema, rule.table)
    return _Rules(
        rule.table,
        TablePatterns((rule.table,)),
        dict(rule.columns),
        schema,
        rule.on_violation or action,
    )


def _check(images: pa.BinaryArray, own: Any, rule: _Rules, found: _Found) -> None:
    """Note which rows break one entry's rules.

    Args:
        images: the new images of the rows it is about.
        own: int array, where they stand in the batch.
        rule: the entry.
        found: what is noted so far.
    """
    if rule.columns:
        for column, what, rows in broken(images, rule.columns):
            name = f"{rule.name}.{column}.{what}"
            found.add(rule, own[rows], name, f"column {column!r}: {what}")
    if rule.schema is not None:
        texts = zip(images.to_pylist(), wide_integers(images), strict=True)
        for at, (image, wide) in enumerate(texts):
            reason = rule.schema.broken(image, wide=wide)
            if reason is not None:
                found.add(rule, own[at : at + 1], f"{rule.name}.schema", reason)
