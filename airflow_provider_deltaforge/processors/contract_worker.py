"""Holding batches to a data contract."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.errors import EventError
from airflow_provider_deltaforge.events.message import Rejection
from airflow_provider_deltaforge.processors.bad_rows import REJECTED
from airflow_provider_deltaforge.processors.contract import Processed
from airflow_provider_deltaforge.processors.contract_columns import broken
from airflow_provider_deltaforge.processors.contract_schema import RowSchema
from airflow_provider_deltaforge.processors.data_contract import (
    Action,
    ColumnRule,
    DataContract,
    TableRule,
)
from airflow_provider_deltaforge.processors.event_tables import Table, tables_of
from airflow_provider_deltaforge.processors.json_objects import wide_integers
from airflow_provider_deltaforge.spec.patterns import TableMatcher

_CHECKED = pa.array(["c", "u", "r"])
_TOLD = 5


@dataclass(frozen=True, slots=True)
class _Rules:
    """The rules of one entry, ready to be used."""

    name: str
    matcher: TableMatcher
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
        found = _Found()
        tables, index = tables_of(rows)
        has_image = pc.and_(
            rows.column("after").is_valid(), pc.is_in(rows.column("op").cast(pa.utf8()), _CHECKED)
        ).to_numpy(zero_copy_only=False)
        for at, table in enumerate(tables):
            rules = [rule for rule in self._rules if rule.matcher.matches(*table)]
            own = np.nonzero(has_image & (index == at))[0] if rules else np.zeros(0, np.int64)
            if len(own):
                images = rows.column("after").take(pa.array(own))
                for rule in rules:
                    _check(images, own, rule, table, found)
        return found.processed(rows)

    def close(self) -> None:
        """Nothing is held."""


class _Found:
    """What breaks the contract in one batch."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = defaultdict(int)
        self._blocked: list[tuple[int, str]] = []
        self._reasons: dict[int, list[str]] = defaultdict(list)

    def add(self, rule: _Rules, rows: Any, name: str, reason: str) -> None:
        """Note the rows that break one rule.

        Args:
            rule: the entry it belongs to.
            rows: int array, rows of the batch; at least one.
            name: the rule's name in metrics.
            reason: the same for people.
        """
        self._counts[f"violations:{name}"] += len(rows)
        if rule.action == "block":
            self._blocked += [(row, reason) for row in rows.tolist()]
        elif rule.action == "quarantine":
            for row in rows.tolist():
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
            Rejection(row, REJECTED, "; ".join(reasons[:_TOLD]))
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
        TableMatcher((rule.table,)),
        dict(rule.columns),
        schema,
        rule.on_violation or action,
    )


def _check(images: pa.BinaryArray, own: Any, rule: _Rules, table: Table, found: _Found) -> None:
    """Note which of one table's rows break one entry's rules.

    Args:
        images: their new images.
        own: int array, where they stand in the batch.
        rule: the entry.
        table: their table.
        found: what is noted so far.
    """
    place = ".".join(table)
    if rule.columns:
        for column, what, rows in broken(images, rule.columns):
            reason = f"table {place}, column {column!r}: {what}"
            found.add(rule, own[rows], f"{rule.name}.{column}.{what}", reason)
    if rule.schema is not None:
        texts = zip(images.to_pylist(), wide_integers(images), strict=True)
        for at, (image, wide) in enumerate(texts):
            reason_of_one = rule.schema.broken(image, wide=wide)
            if reason_of_one is not None:
                reason = f"table {place}, {reason_of_one}"
                found.add(rule, own[at : at + 1], f"{rule.name}.schema", reason)
