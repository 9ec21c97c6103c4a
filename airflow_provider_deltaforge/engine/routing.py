"""Routing templates, filled in column by column.

A field that an event does not have becomes an empty string, with one warning per template. On a
delete, ``after.x`` is read from ``before``: a delete must reach the same partition as the row's
earlier changes, or a consumer could see it before them.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.envelopes.columns import (
    codes,
    combinations,
    uuid_texts,
)
from airflow_provider_deltaforge.envelopes.contract import Origin
from airflow_provider_deltaforge.spec.template import Path, Template

log = logging.getLogger(__name__)

# Not a scalar of a value: pyarrow would look for pandas before a driver can leave it out.
_NULL = pa.nulls(1, pa.utf8())[0]


@dataclass
class Fields:
    """The fields of one batch that templates name; each row image is parsed at most once."""

    rows: pa.RecordBatch
    origin: Origin
    _parsed: dict[str, list[Any]] = field(default_factory=dict)

    def column(self, path: Path) -> pa.Array:
        """Return a column of texts, null where an event lacks the field."""
        root, *inside = path.segments
        if root == "source" and inside:
            return self._source(inside)
        if root == "transaction":
            return self._transaction(inside)
        if root in {"before", "after"}:
            return self._image(root, inside)
        if inside and root != "ddl":
            return self._nothing()
        return self._top(root, inside)

    def _top(self, root: str, inside: list[str]) -> pa.Array:
        rows = self.rows
        plain: Mapping[str, Callable[[], pa.Array]] = {
            "op": lambda: rows["op"],
            "tx_id": lambda: rows["tx_id"],
            "schema_version": lambda: rows["schema_version"],
            "synthetic": lambda: rows["synthetic"],
            "tenant_id": lambda: self._constant(self.origin.tenant),
            "ts_ms": lambda: rows["ts_ms"].cast(pa.utf8()),
            "schema_sequence": lambda: rows["schema_sequence"].cast(pa.utf8()),
            "event_id": lambda: uuid_texts(rows["event_id"]).cast(pa.utf8()),
            "tx_end": lambda: pc.if_else(rows["tx_end"], "true", _NULL),
            "ddl": lambda: self._texts("ddl", inside),
            "tags": lambda: pa.array([_text(v) for v in rows["tags"].to_pylist()], pa.utf8()),
        }
        return plain[root]() if root in plain else self._nothing()

    def _source(self, inside: list[str]) -> pa.Array:
        name, *deeper = inside
        rows = self.rows
        if deeper:
            return self._nothing()
        shared = (self.origin.source_version, self.origin.connector, self.origin.pipeline)
        plain: Mapping[str, Callable[[], pa.Array]] = {
            "db": lambda: rows["db"],
            "schema": lambda: rows["schema"],
            "table": lambda: rows["table"],
            "version": lambda: self._constant(shared[0]),
            "connector": lambda: self._constant(shared[1]),
            "name": lambda: self._constant(shared[2]),
            "ts_ms": lambda: rows["ts_ms"].cast(pa.utf8()),
            "snapshot": lambda: pc.if_else(self._is_op("r"), "true", _NULL),
            "row": lambda: pc.if_else(
                rows["source_position"].is_valid(), rows["row"].cast(pa.utf8()), _NULL
            ),
        }
        return plain[name]() if name in plain else self._position(name)

    def _position(self, name: str) -> pa.DictionaryArray:
        position = self.rows["source_position"]
        texts = [
            _text(orjson.loads(b"{" + inner + b"}").get(name))
            for inner in position.dictionary.to_pylist()
        ]
        return pa.DictionaryArray.from_arrays(position.indices, pa.array(texts, pa.utf8()))

    def _transaction(self, inside: list[str]) -> pa.Array:
        if inside == ["id"]:
            return self.rows["tx_id"]
        if inside == ["total_order"]:
            order = pc.add(self.rows["row"], 1)
            known = self.rows["tx_id"].is_valid()
            return pc.if_else(known, order.cast(pa.utf8()), _NULL)
        return self._nothing()

    def _image(self, root: str, inside: list[str]) -> pa.Array:
        texts = self._texts(root, inside)
        if root == "before":
            return texts
        is_delete = self._is_op("d")
        if not pc.any(is_delete).as_py():
            return texts
        return pc.if_else(is_delete, self._texts("before", inside), texts)

    def _texts(self, name: str, inside: list[str]) -> pa.Array:
        if not inside:
            return self.rows[name].cast(pa.utf8())
        values = [_text(_dig(value, inside)) for value in self._parse(name)]
        return pa.array(values, pa.utf8())

    def _parse(self, name: str) -> list[Any]:
        if name not in self._parsed:
            texts = self.rows[name].to_pylist()
            self._parsed[name] = [None if text is None else orjson.loads(text) for text in texts]
        return self._parsed[name]

    def _is_op(self, op: str) -> pa.BooleanArray:
        return pc.equal(self.rows["op"].cast(pa.utf8()), op)

    def _constant(self, text: str) -> pa.DictionaryArray:
        zeros = pa.repeat(pa.scalar(0, pa.int32()), self.rows.num_rows)
        return pa.DictionaryArray.from_arrays(zeros, pa.array([text], pa.utf8()))

    def _nothing(self) -> pa.DictionaryArray:
        nulls = pa.nulls(self.rows.num_rows, pa.int32())
        return pa.DictionaryArray.from_arrays(nulls, pa.array([], pa.utf8()))


class Filling:
    """One template of one sink, ready to be filled in."""

    def __init__(self, text: str, where: str) -> None:
        self._template = Template.parse(text)
        self._where = where
        self._warned = False

    def choices(self, fields: Fields) -> pa.DictionaryArray:
        """Return the text of every row, as a dictionary: for destinations, which are few."""
        row_count = fields.rows.num_rows
        columns = self._columns(fields)
        if not columns:
            zeros = pa.repeat(pa.scalar(0, pa.int32()), row_count)
            return pa.DictionaryArray.from_arrays(zeros, pa.array([self._template.text]))
        if all(isinstance(column, pa.DictionaryArray) for column in columns):
            wanted, found = combinations(columns)
            texts = pa.array([self._one(values) for values in found], pa.utf8())
            return pa.DictionaryArray.from_arrays(pa.array(wanted, pa.int32()), texts)
        return self._joined(columns).dictionary_encode()

    def texts(self, fields: Fields) -> pa.BinaryArray:
        """Return the text of every row: for keys, which are many."""
        columns = self._columns(fields)
        if not columns:
            text = pa.scalar(self._template.text.encode(), pa.binary())
            return pa.repeat(text, fields.rows.num_rows)
        return self._joined(columns).cast(pa.binary())

    def _columns(self, fields: Fields) -> list[pa.Array]:
        columns = [fields.column(path) for path in self._template.paths]
        if not self._warned and any(_lacks(column) for column in columns):
            self._warned = True
            log.warning(
                "routing template names a field that some events do not have; it is left empty",
                extra={"where": self._where, "template": self._template.text},
            )
        return columns

    def _one(self, values: list[str | None]) -> str:
        rest = iter(values)
        parts = self._template.parts
        return "".join(part if isinstance(part, str) else next(rest) or "" for part in parts)

    def _joined(self, columns: list[pa.Array]) -> pa.StringArray:
        rest = iter(columns)
        parts = [
            part if isinstance(part, str) else next(rest).cast(pa.utf8())
            for part in self._template.parts
        ]
        return pc.binary_join_element_wise(*parts, "", null_handling="replace", null_replacement="")


def _lacks(column: pa.Array) -> bool:
    if column.null_count:
        return True
    if not isinstance(column, pa.DictionaryArray) or not column.dictionary.null_count:
        return False
    missing = column.dictionary.is_null()
    return bool(pc.any(missing.take(pa.array(codes(column)))).as_py())


def _dig(value: Any, inside: list[str]) -> Any:
    for name in inside:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return orjson.dumps(value).decode()
