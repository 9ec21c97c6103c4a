"""Masks values in row images and keys, column by column."""

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.columns import json_fields
from airflow_provider_deltaforge.columns.json_scan_kernel import DEPTH_MAX
from airflow_provider_deltaforge.errors import FatalError
from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA
from airflow_provider_deltaforge.processors.contract import Processed, rejected
from airflow_provider_deltaforge.processors.event_tables import Table, full_name, tables_of
from airflow_provider_deltaforge.processors.mask import mask_kernel, texts
from airflow_provider_deltaforge.processors.mask.actions import Actions, applied
from airflow_provider_deltaforge.processors.mask.patterns import folded, parts_of, regex_of
from airflow_provider_deltaforge.processors.mask.settings import Mask

_KEYS = ("key", "former_key")
_IMAGES = ("before", "after")
_QUALIFIER, _TABLE = 0, 1
_REASONS = {
    mask_kernel.BROKEN: "a row image or key is not JSON, so nothing in it can be masked",
    mask_kernel.DEEP: (
        f"nested more than {DEPTH_MAX:,} deep where a rule's columns may go on, so not all of them "
        "can be found; a rule for the whole column masks it at any depth"
    ),
}


class _Matches(NamedTuple):
    """What values that were found belong to.

    Attributes:
        rows: the batch.
        origins: int64 per value, its row in the batch.
        counts: how many were masked by which pattern, added to.
        is_key: they are in the events' keys.
        faults: uint8 per row of the batch, why it cannot be masked; added to.
    """

    rows: pa.RecordBatch
    origins: Any
    counts: Counter[str]
    is_key: bool
    faults: Any


class MaskWorker:
    """Implements ``processors.contract.Worker``."""

    def __init__(self, settings: Mask) -> None:
        secret = None if settings.secret is None else settings.secret.get_secret_value()
        self._id = settings.id
        self._actions = Actions(settings.rules, secret)
        pairs = [
            (pattern, number)
            for number, rule in enumerate(settings.rules)
            for pattern in rule.columns
        ]
        self._patterns = [pattern for pattern, _ in pairs]
        self._rule_of = np.array([number for _, number in pairs], np.int64)
        parts = [parts_of(pattern) for pattern in self._patterns]
        self._tables = [[regex_of(part) for part in pattern[: _TABLE + 1]] for pattern in parts]
        self._paths = texts.Paths(tuple(pattern[_TABLE + 1 :] for pattern in parts))
        self._known: dict[Table, tuple[int, ...]] = {}
        texts.precompile()

    def process(self, rows: pa.RecordBatch) -> Processed:
        """Replace what rules name in both images and the key; refuse what cannot be read."""
        sets, members = self._sets(rows)
        if not members:
            return Processed(rows)
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        faults = np.zeros(rows.num_rows, np.uint8)
        counts: Counter[str] = Counter()
        for name in (*_IMAGES, *_KEYS):
            column = columns[name]
            if column.null_count == len(column):
                continue
            found = self._paths.find(column, sets, members)
            faults = np.maximum(faults, found.faults)
            if len(found.rows):
                made = _Matches(rows, found.rows, counts, name in _KEYS, faults)
                columns[name] = self._masked(self._paths, column, found, made)
        done = pa.RecordBatch.from_arrays(list(columns.values()), schema=CHANGE_SCHEMA)
        if not faults.any():
            return Processed(done, counts=counts)
        kept = pa.array(np.flatnonzero(faults == 0).astype(np.int32))
        refused = np.flatnonzero(faults).tolist()
        rejections = [rejected(row, _REASONS[faults[row]]) for row in refused]
        return Processed(done.take(kept), kept, rejections=rejections, counts=counts)

    def close(self) -> None:
        """Nothing is open."""

    def _masked(
        self, paths: texts.Paths, column: pa.BinaryArray, found: texts.Found, made: _Matches
    ) -> pa.BinaryArray:
        """Return a column with other values in the places of those that were found."""
        values = texts.values(column, found)
        rules = np.where(found.which < 0, found.which, self._rule_of[np.maximum(found.which, 0)])
        order = np.argsort(rules, kind="stable")
        parts = []
        for rule in np.unique(rules).tolist():
            mine = np.flatnonzero(rules == rule)
            chosen = values.take(pa.array(mine))
            if rule < 0:
                keys = int(found.keys[mine[0]])
                inside = made._replace(origins=made.origins[mine])
                parts.append(self._within(paths.below(keys), chosen, found.deeper[mine], inside))
                continue
            action = self._actions.of_key(rule) if made.is_key else self._actions.of_image(rule)
            if action is None:
                raise self._one_key_for_all(
                    made.rows, int(made.origins[mine[0]]), int(found.which[mine[0]])
                )
            parts.append(applied(action, chosen))
        if not made.is_key:
            there = np.asarray(pc.not_equal(values, b"null")) & (found.which >= 0)
            for path, count in enumerate(np.bincount(found.which[there]).tolist()):
                if count:
                    made.counts[f"masked:{self._patterns[path]}"] += count
        new = pa.concat_arrays(parts).take(pa.array(np.argsort(order, kind="stable")))
        return texts.replaced(column, found, new)

    def _within(
        self, paths: texts.Paths, strings: pa.BinaryArray, deeper: Any, made: _Matches
    ) -> pa.BinaryArray:
        """Return strings with values masked in those that hold JSON; the others stay.

        MariaDB's JSON columns are text, and so are many payloads.
        """
        texts_inside = json_fields.as_text(strings).cast(pa.binary())
        different, sets = np.unique(deeper, axis=0, return_inverse=True)
        members = [tuple(np.flatnonzero(choice).tolist()) for choice in different]
        found = paths.find(texts_inside, sets.reshape(-1).astype(np.int32), members)
        # What is no JSON is only text; what is too deep may hold what is to be masked.
        made.faults[made.origins[found.faults == mask_kernel.DEEP]] = mask_kernel.DEEP
        if not len(found.rows):
            return strings
        inside = made._replace(origins=made.origins[found.rows])
        masked = self._masked(paths, texts_inside, found, inside)
        changed = np.asarray(pc.not_equal(masked, texts_inside))
        quoted = [
            orjson.dumps(new.decode(errors="replace")) if differs else None
            for new, differs in zip(masked.to_pylist(), changed.tolist(), strict=True)
        ]
        return pc.coalesce(pa.array(quoted, pa.binary()), strings)

    def _one_key_for_all(self, rows: pa.RecordBatch, row: int, path: int) -> FatalError:
        pattern = self._patterns[path]
        (table,), _ = tables_of(rows.slice(row, 1))
        return FatalError(
            f"processor {self._id}: {pattern!r} names a column of the primary key of "
            f"{full_name(table)}, and different rows would get one key; give the processor a "
            "'secret', with which keys hold a hash, or use 'hash' or 'tokenise' for this column"
        )

    def _sets(self, rows: pa.RecordBatch) -> tuple[Any, list[tuple[int, ...]]]:
        """Return which set of paths each row has, -1 for none, and the sets."""
        tables, table_of = tables_of(rows)
        ordinals: dict[tuple[int, ...], int] = {(): -1}
        set_of = [ordinals.setdefault(self._paths_of(table), len(ordinals) - 1) for table in tables]
        del ordinals[()]
        return np.array(set_of, np.int32)[table_of], list(ordinals)

    def _paths_of(self, table: Table) -> tuple[int, ...]:
        """Return the paths that are looked for in a table's rows.

        Its qualifier is the schema or the database: rather one value too many than one too few.
        """
        if table not in self._known:
            db, schema, name = table
            qualifiers = [folded(qualifier) for qualifier in (db, schema) if qualifier is not None]
            self._known[table] = tuple(
                path
                for path, parts in enumerate(self._tables)
                if any(parts[_QUALIFIER].fullmatch(qualifier) for qualifier in qualifiers)
                and parts[_TABLE].fullmatch(folded(name))
            )
        return self._known[table]
