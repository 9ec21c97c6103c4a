"""Masks values in row images and keys, column by column."""

import re
import string
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.errors import FatalError
from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA
from airflow_provider_deltaforge.events.message import Rejection
from airflow_provider_deltaforge.processors import mask_texts as texts
from airflow_provider_deltaforge.processors.contract import Processed
from airflow_provider_deltaforge.processors.mask import Mask
from airflow_provider_deltaforge.processors.mask_actions import Actions, applied

_KEY = "key"
_IMAGES = ("before", "after")
_SMALL = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_QUALIFIER, _TABLE = 0, 1
_BROKEN = "a row image or key is not JSON, so nothing in it can be masked"

Table = tuple[str, str | None, str]
"""Database, schema and name."""


class MaskWorker:
    """Implements ``processors.contract.Worker``."""

    def __init__(self, settings: Mask) -> None:
        secret = None if settings.secret is None else settings.secret.get_secret_value()
        self._id = settings.id
        self._actions = Actions(settings.rules, secret)
        told = [
            (pattern, number)
            for number, rule in enumerate(settings.rules)
            for pattern in rule.columns
        ]
        self._patterns = [pattern for pattern, _ in told]
        self._rule_of = np.array([number for _, number in told], np.int64)
        parts = [pattern.translate(_SMALL).split(".") for pattern in self._patterns]
        self._tables = [[_regex(part) for part in one[: _TABLE + 1]] for one in parts]
        self._paths = texts.Paths(tuple(tuple(one[_TABLE + 1 :]) for one in parts))
        self._known: dict[Table, tuple[int, ...]] = {}
        texts.warm()

    def process(self, rows: pa.RecordBatch) -> Processed:
        """Replace what rules name in both images and the key; refuse what cannot be read."""
        sets, members = self._sets(rows)
        if not members:
            return Processed(rows)
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        broken = np.zeros(rows.num_rows, np.bool_)
        counts: Counter[str] = Counter()
        for name in (*_IMAGES, _KEY):
            column = columns[name]
            if column.null_count == len(column):
                continue
            found = self._paths.find(column, sets, members)
            broken |= found.broken
            if len(found.rows):
                columns[name] = self._masked(rows, name, found, counts)
        done = pa.RecordBatch.from_arrays(list(columns.values()), schema=CHANGE_SCHEMA)
        if not broken.any():
            return Processed(done, counts=counts)
        kept = pa.array(np.flatnonzero(~broken).astype(np.int32))
        refused = np.flatnonzero(broken).tolist()
        rejections = [Rejection(row, "processor", _BROKEN) for row in refused]
        return Processed(done.take(kept), kept, rejections=rejections, counts=counts)

    def close(self) -> None:
        """Nothing is open."""

    def _masked(
        self, rows: pa.RecordBatch, name: str, found: texts.Found, counts: Counter[str]
    ) -> pa.BinaryArray:
        """Return a column with other values in the places of those that were found."""
        column = rows.column(name)
        values = texts.values(column, found)
        rules = self._rule_of[found.which]
        order = np.argsort(rules, kind="stable")
        made = []
        for rule in np.unique(rules).tolist():
            mine = np.flatnonzero(rules == rule)
            action = self._actions.of_key(rule) if name == _KEY else self._actions.of_image(rule)
            if action is None:
                raise self._one_key_for_all(rows, found, int(mine[0]))
            made.append(applied(action, values.take(pa.array(mine))))
        if name != _KEY:
            there = np.asarray(pc.not_equal(values, b"null"))
            for path, count in enumerate(np.bincount(found.which[there]).tolist()):
                if count:
                    counts[f"masked:{self._patterns[path]}"] += count
        new = pa.concat_arrays(made).take(pa.array(np.argsort(order, kind="stable")))
        return texts.replaced(column, found, new)

    def _one_key_for_all(self, rows: pa.RecordBatch, found: texts.Found, at: int) -> FatalError:
        row, pattern = int(found.rows[at]), self._patterns[int(found.which[at])]
        db, schema, table = (rows.column(name)[row].as_py() for name in ("db", "schema", "table"))
        return FatalError(
            f"processor {self._id}: {pattern!r} names a column of the primary key of "
            f"{schema or db}.{table}, and different rows would get one key; give the processor a "
            "'secret', with which keys hold a hash, or use 'hash' or 'tokenise' for this column"
        )

    def _sets(self, rows: pa.RecordBatch) -> tuple[Any, list[tuple[int, ...]]]:
        """Return which set of paths each row has, -1 for none, and the sets."""
        columns = [rows.column(name) for name in ("db", "schema", "table")]
        names = [[*column.dictionary.to_pylist(), None] for column in columns]
        code = np.zeros(rows.num_rows, np.int64)
        for column, own in zip(columns, names, strict=True):
            codes = column.indices.fill_null(len(own) - 1).to_numpy(zero_copy_only=False)
            code = code * len(own) + codes
        distinct, table_of = np.unique(code, return_inverse=True)
        ordinals: dict[tuple[int, ...], int] = {(): -1}
        set_of = []
        for one in distinct.tolist():
            rest, table = divmod(one, len(names[2]))
            db, schema = divmod(rest, len(names[1]))
            paths = self._paths_of((names[0][db] or "", names[1][schema], names[2][table] or ""))
            set_of.append(ordinals.setdefault(paths, len(ordinals) - 1))
        del ordinals[()]
        return np.array(set_of, np.int32)[table_of], list(ordinals)

    def _paths_of(self, table: Table) -> tuple[int, ...]:
        """Return the paths that are looked for in a table's rows.

        Its qualifier is the schema or the database: rather one value too many than one too few.
        """
        if table not in self._known:
            db, schema, name = table
            qualifiers = [one.lower() for one in (db, schema) if one is not None]
            self._known[table] = tuple(
                path
                for path, parts in enumerate(self._tables)
                if any(parts[_QUALIFIER].fullmatch(one) for one in qualifiers)
                and parts[_TABLE].fullmatch(name.lower())
            )
        return self._known[table]


def _regex(part: str) -> "re.Pattern[str]":
    return re.compile(".*".join(map(re.escape, part.lower().split("*"))), re.DOTALL)
