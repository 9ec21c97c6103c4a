"""Routing templates, filled in column by column.

Strings of a row image are filled in without quotes and escapes, everything else as the image writes
it, every digit included, but for white space. A field that an event does not have becomes an empty
string, with one warning per template. On a delete, ``after.x`` is read from ``before``: a delete
must reach the same partition as the row's earlier changes, or a consumer could see it before them.
So is a value of ``after`` that the log does not repeat; it is missing where ``before`` lacks it.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any
from urllib.parse import quote

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.columns import json_fields
from airflow_provider_deltaforge.columns.binary_columns import uuid_texts
from airflow_provider_deltaforge.columns.marks import UNCHANGED
from airflow_provider_deltaforge.columns.value_codes import codes, combinations, repeated
from airflow_provider_deltaforge.envelopes.contract import Origin
from airflow_provider_deltaforge.events.change import TEXT
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.sinks.contract import Sink
from airflow_provider_deltaforge.spec.policies import Sharding
from airflow_provider_deltaforge.spec.template import Path, Template

log = logging.getLogger(__name__)

# Not a scalar of a value: pyarrow would look for pandas before a driver can leave it out.
_NULL = pa.nulls(1, pa.utf8())[0]


@dataclass
class TemplateFields:
    """The fields of one batch that templates name."""

    rows: pa.RecordBatch
    origin: Origin
    new_images: pa.BinaryArray | None = None
    """Where a delete's own image lacks a field, it is read from here; see ``key_changes``."""
    shards: pa.Int32Array | None = None
    """The shard of each message, for destinations."""

    def column(self, path: Path) -> pa.Array:
        """Return a column of texts, null where an event lacks the field."""
        root, *inside = path.segments
        if root == "source" and inside:
            return self._source(inside)
        if root == "transaction":
            return self._transaction(inside)
        if root in {"before", "after"}:
            return self._image(root, inside)
        if root == "shard" and not inside and self.shards is not None:
            return self.shards.dictionary_encode().cast(TEXT)
        if inside and root != "ddl":
            return self._nothing()
        return self._top(root, inside)

    def undecided(self, part: str) -> pa.BooleanArray | None:
        """Return for which events no processor chose the ``topic``, or ``key``; None for all."""
        routing = self.rows["routing"]
        if routing.null_count == len(routing):
            return None
        # flatten, unlike field, carries the struct's own nulls into its children.
        chosen = routing.flatten()[routing.type.get_field_index(part)]
        if part == "topic":
            return pc.fill_null(pc.equal(chosen, ""), fill_value=True)
        return chosen.is_null()

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
            "ddl": lambda: _inside(rows["ddl"], inside)[0],
            "tags": lambda: pa.array([_text(v) for v in rows["tags"].to_pylist()], pa.utf8()),
        }
        return plain[root]() if root in plain else self._nothing()

    def _source(self, inside: list[str]) -> pa.Array:
        name, *deeper = inside
        rows, origin = self.rows, self.origin
        if deeper:
            return self._nothing()
        plain: Mapping[str, Callable[[], pa.Array]] = {
            "db": lambda: rows["db"],
            "schema": lambda: rows["schema"],
            "table": lambda: rows["table"],
            "version": lambda: self._constant(origin.source_version),
            "connector": lambda: self._constant(origin.connector),
            "name": lambda: self._constant(origin.pipeline),
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
        images = self.rows[root]
        if root == "after":
            is_delete = self._is_op("d")
            if pc.any(is_delete).as_py():
                images = pc.if_else(is_delete, self.rows["before"], images)
        texts, unchanged = _inside(images, inside)
        if root == "after" and unchanged is not None:
            texts = pc.if_else(unchanged, _inside(self.rows["before"], inside)[0], texts)
        if root == "after" and self.new_images is not None:
            lacking = pc.and_not(texts.is_null(), _are_null(images, inside))
            texts = pc.if_else(lacking, _inside(self.new_images, inside)[0], texts)
        return texts

    def is_null(self, path: Path) -> pa.BooleanArray:
        """Return which row images have a field, and say that it is null."""
        root, *inside = path.segments
        if root not in {"before", "after"} or not inside:
            return pa.array(np.zeros(self.rows.num_rows, np.bool_))
        return _are_null(self.rows[root], inside)

    def _is_op(self, op: str) -> pa.BooleanArray:
        return pc.equal(self.rows["op"].cast(pa.utf8()), op)

    def _constant(self, text: str) -> pa.DictionaryArray:
        return repeated(text, self.rows.num_rows)

    def _nothing(self) -> pa.DictionaryArray:
        nulls = pa.nulls(self.rows.num_rows, pa.int32())
        return pa.DictionaryArray.from_arrays(nulls, pa.array([], pa.utf8()))


class RouteTemplate:
    """One template of one sink, ready to be filled in.

    Args:
        text: the template.
        where: what it is for, in warnings.
        quoted: percent-encode what fields put in, as a URL needs it.
    """

    def __init__(self, text: str, where: str, *, quoted: bool = False) -> None:
        self._template = Template.parse(text)
        self._where = where
        self._quoted = quoted
        self._warned = False

    def choices(self, fields: TemplateFields) -> pa.DictionaryArray:
        """Return the text of every row, as a dictionary: for destinations, which are few."""
        row_count = fields.rows.num_rows
        columns = self._columns(fields, "topic")
        if not columns:
            return repeated(self._template.text, row_count)
        if all(isinstance(column, pa.DictionaryArray) for column in columns):
            wanted, found = combinations(columns)
            if len(found) == 1:
                return repeated(self._text_of(found[0]), row_count)
            texts = pa.array([self._text_of(values) for values in found], pa.utf8())
            return pa.DictionaryArray.from_arrays(pa.array(wanted, pa.int32()), texts)
        return self._joined(columns).dictionary_encode()

    def texts(self, fields: TemplateFields) -> pa.BinaryArray:
        """Return the text of every row: for keys, which are many."""
        columns = self._columns(fields, "key")
        if not columns:
            text = pa.scalar(self._template.text.encode(), pa.binary())
            return pa.repeat(text, fields.rows.num_rows)
        return self._joined(columns).cast(pa.binary())

    @property
    def reads_new_image(self) -> bool:
        """Whether an update may change the text."""
        return any(path.segments[0] == "after" for path in self._template.paths)

    def known(self, fields: TemplateFields) -> pa.BinaryArray:
        """Return the text of every row that has all fields; null for the others, and no warning.

        A field that is null is there: it is filled in as an empty text.
        """
        paths = self._template.paths
        columns = [fields.column(path).cast(pa.utf8()) for path in paths]
        there = [
            pc.or_(column.is_valid(), fields.is_null(path))
            for column, path in zip(columns, paths, strict=True)
        ]
        return pc.if_else(reduce(pc.and_, there), self._joined(columns), _NULL).cast(pa.binary())

    def _columns(self, fields: TemplateFields, part: str) -> list[pa.Array]:
        columns = [fields.column(path) for path in self._template.paths]
        if not self._warned and _lacking(columns, fields.undecided(part)):
            self._warned = True
            # A URL may hold a secret, which a variable put there.
            text = " ".join(f"${{{path}}}" for path in self._template.paths)
            log.warning(
                "routing template names a field that some events do not have; it is left empty",
                extra={
                    "where": self._where,
                    "template": text if self._quoted else self._template.text,
                },
            )
        return [_quoted(column) for column in columns] if self._quoted else columns

    def _text_of(self, values: Sequence[str | None]) -> str:
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


def _quoted(texts: pa.Array) -> pa.Array:
    """Return texts percent-encoded, so that none can be more than a part of a path or query."""
    if isinstance(texts, pa.DictionaryArray):
        return pa.DictionaryArray.from_arrays(texts.indices, _quoted(texts.dictionary))
    if not pc.any(pc.match_substring_regex(texts, "[^A-Za-z0-9._~-]")).as_py():
        return texts
    values = texts.to_pylist()
    return pa.array([None if text is None else quote(text, safe="") for text in values], pa.utf8())


def _lacking(columns: Sequence[pa.Array], needed: pa.BooleanArray | None) -> bool:
    """Return whether a field is missing where the template is needed."""
    return any(
        _lacks(column) and (needed is None or _lacks(column.filter(needed))) for column in columns
    )


def _lacks(column: pa.Array) -> bool:
    if column.null_count:
        return True
    if not isinstance(column, pa.DictionaryArray) or not column.dictionary.null_count:
        return False
    missing = column.dictionary.is_null()
    return bool(pc.any(missing.take(pa.array(codes(column)))).as_py())


def _inside(
    texts: pa.BinaryArray, path: Sequence[str]
) -> tuple[pa.StringArray, pa.BooleanArray | None]:
    """Return what stands at a path, null for nothing; and where a mark says ``unchanged``.

    The mark is no value: it would bring together rows that have nothing in common.
    """
    if not path:
        return texts.cast(pa.utf8()), None
    spans = json_fields.locate(texts, path)
    kinds = json_fields.kinds(texts, spans)
    unchanged = _unchanged(texts, spans, kinds, path)
    if (kinds < json_fields.OBJECT).all():
        found = json_fields.text_values(texts, spans)
    else:
        found = json_fields.as_text(json_fields.compact(json_fields.values(texts, spans)))
    return found if unchanged is None else pc.if_else(unchanged, _NULL, found), unchanged


def _are_null(texts: pa.BinaryArray, path: Sequence[str]) -> pa.BooleanArray:
    spans = json_fields.locate(texts, path)
    return pa.array(json_fields.kinds(texts, spans) == json_fields.NULL)


def _unchanged(
    texts: pa.BinaryArray, spans: json_fields.Spans, kinds: Any, path: Sequence[str]
) -> pa.BooleanArray | None:
    if len(path) > 1:  # The column around it may be marked.
        if (kinds != json_fields.ABSENT).all():
            return None
        spans = json_fields.locate(texts, path[:1])
        kinds = json_fields.kinds(texts, spans)
    if not (kinds == json_fields.OBJECT).any():
        return None
    marks = pc.equal(json_fields.values(texts, spans), pa.scalar(UNCHANGED, pa.binary()))
    marks = pc.fill_null(marks, fill_value=False)
    return marks if marks.true_count else None


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return orjson.dumps(value).decode()


def is_placed_by_key(sink: Sink, sharding: Sharding | None, table: TableSchema) -> bool:
    """Return whether the key of a row alone decides where a sink sends its events.

    If not, a delete that is made of the key may go elsewhere than the row's other events, and a
    consumer could apply it too late, or never.
    """
    texts = [text for text in (sink.destination, sink.key_template) if text]
    paths = [path.segments for text in texts for path in Template.parse(text).paths]
    if sharding is not None and sharding.count is not None and sharding.key_template is not None:
        is_sharded = sink.takes_partitions or any(path[0] == "shard" for path in paths)
        own = Template.parse(sharding.key_template).paths if is_sharded else ()
        paths += [path.segments for path in own]
    columns = {tuple(path[1:2]) for path in paths if path[0] in ("before", "after")}
    return columns <= {(name,) for name in table.primary_key}
