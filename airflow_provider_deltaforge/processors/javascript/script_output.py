"""From what the glue wrote back to change events.

An answer is a JSON object and nine columns of text, apart by a character that JSON cannot hold;
the values of a column are apart by line ends, which written JSON does not hold either.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA, ROUTING
from airflow_provider_deltaforge.processors.changed_events import taken

_APART = b"\x1e"
_LINE_END = 10
_TEXTS = ("before", "after", "ddl", "ts_ms", "key")
_CODED = ("head", "tags", "routing", "misc")
_HEAD = ("op", "db", "schema", "table")


@dataclass(frozen=True, slots=True)
class FailedEvent:
    """One event that the script could not process.

    Attributes:
        row: which of those handed over.
        ours: whether the text is ours, and holds no values.
        text: why, or the name of the error.
        stack: where, as V8 prints it.
    """

    row: int
    ours: bool
    text: str
    stack: str


@dataclass(frozen=True, slots=True)
class ScriptLogs:
    """What a script returned beside its events.

    Attributes:
        logs: level and text of each line.
        hidden: how many lines there were beyond those.
        notes: what kind of name was ignored, and the name.
    """

    logs: Sequence[tuple[str, str]] = ()
    hidden: int = 0
    notes: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class ScriptOutput:
    """What a script made of a batch.

    Attributes:
        rows: change events; None if the call failed as a whole.
        origins: int32 per row, the row handed over.
        made: ordinals of the rows that the script created.
        placed: of these, those of which only their place tells what they were made from.
        bad: events that could not be processed; the call's own failure if ``rows`` is None.
        logs: what it logged.
    """

    rows: pa.RecordBatch | None
    origins: Any
    made: Sequence[int]
    placed: Sequence[int]
    bad: Sequence[FailedEvent]
    logs: ScriptLogs


def logs_of(head: dict[str, Any]) -> ScriptLogs:
    """Return what a script returned beside its events, from the object an answer begins with."""
    return ScriptLogs(head.get("logs", ()), head.get("hidden", 0), head.get("notes", ()))


def answered(answer: bytes, rows: pa.RecordBatch) -> ScriptOutput:
    """Read what the glue wrote.

    Args:
        answer: its text.
        rows: what was handed over.
    """
    text, *sections = answer.split(_APART)
    head = orjson.loads(text)
    if "failed" in head:
        return ScriptOutput(None, None, (), (), [FailedEvent(0, *head["failed"])], logs_of(head))
    count = head["count"]
    origins = np.arange(count) if head["origins"] is None else np.array(head["origins"], np.int32)
    # What an event was made from lends it its transaction, but not its end of it.
    base = taken(rows, origins)
    columns = {name: base.column(name) for name in CHANGE_SCHEMA.names}
    bad = [FailedEvent(row, *why) for row, why in head["bad"]]
    if count:
        texts = dict(zip((*_TEXTS, *_CODED), sections, strict=True))
        _put_texts(columns, head, texts)
        _put_codes(columns, head, texts)
        _unset(columns, head)
    changed = pa.RecordBatch.from_arrays(list(columns.values()), schema=CHANGE_SCHEMA)
    made, placed = head["made"], head["placed"]
    return ScriptOutput(changed, origins.astype(np.int32), made, placed, bad, logs_of(head))


def _put_texts(columns: dict[str, pa.Array], head: dict[str, Any], texts: dict[str, bytes]) -> None:
    for name in ("before", "after", "ddl"):
        values = _lines(texts[name], head[name])
        if values is not None:
            columns[name] = _placed(columns[name], _null_aware(values), head[name])
    moments = _lines(texts["ts_ms"], head["ts_ms"])
    if moments is not None:
        numbers = moments.cast(pa.utf8()).cast(pa.int64())
        columns["ts_ms"] = _placed(columns["ts_ms"], numbers, head["ts_ms"])


def _put_codes(columns: dict[str, pa.Array], head: dict[str, Any], texts: dict[str, bytes]) -> None:
    if head["head"] is not None:
        where, distinct = head["head"]
        for name, values in zip(_HEAD, zip(*distinct, strict=True), strict=True):
            _put_words(columns, name, values, _codes(texts["head"]), where)
    if head["tags"] is not None:
        where, distinct = head["tags"]
        chosen = pa.array(distinct, pa.list_(pa.utf8())).take(_codes(texts["tags"]))
        columns["tags"] = _placed(columns["tags"], chosen, where)
    if head["routing"] is not None:
        where, distinct = head["routing"]
        codes = _codes(texts["routing"])
        keys = pa.nulls(len(codes), pa.utf8())
        written = _lines(texts["key"], head["key"])
        if written is not None:
            keys = _placed(keys, _decoded(written), head["key"])
        chosen = _routed(distinct, codes, keys)
        columns["routing"] = _placed(columns["routing"], chosen, where)
    if head["misc"] is not None:
        where, distinct = head["misc"]
        codes = _codes(texts["misc"])
        versions, numbers, makers = zip(*distinct, strict=True)
        _put_words(columns, "schema_version", versions, codes, where)
        sequence = pa.array(numbers, pa.int64()).take(codes)
        columns["schema_sequence"] = _placed(columns["schema_sequence"], sequence, where)
        made_by = pa.array(makers, pa.utf8()).take(codes)
        columns["synthetic"] = _placed(columns["synthetic"], made_by, where)


def _unset(columns: dict[str, pa.Array], head: dict[str, Any]) -> None:
    """Take from events that were made what only the log's own events have."""
    if head["keyless"]:
        keyless = _mask(head["count"], head["keyless"])
        for name in ("key", "former_key"):
            columns[name] = pc.if_else(keyless, None, columns[name])
    if head["made"]:
        made = _mask(head["count"], head["made"])
        columns["tx_end"] = pc.if_else(made, pa.scalar(value=False), columns["tx_end"])


def _mask(count: int, rows: Sequence[int]) -> pa.BooleanArray:
    mask = np.zeros(count, np.bool_)
    mask[rows] = True
    return pa.array(mask)


def _put_words(
    columns: dict[str, pa.Array],
    name: str,
    distinct: Sequence[str | None],
    codes: pa.Int32Array,
    where: list[int] | None,
) -> None:
    words = pa.array(distinct, pa.utf8()).take(codes)
    if where is not None:
        words = _placed(columns[name].cast(pa.utf8()), words, where)
    columns[name] = words.dictionary_encode()


def _routed(distinct: list[Any], codes: pa.Int32Array, keys: pa.StringArray) -> pa.StructArray:
    def each(values: list[Any], kind: pa.DataType) -> pa.Array:
        return pa.array(values, kind).take(codes)

    topics = [None if route is None else route[0] for route in distinct]
    headers = [None if route is None else _pairs(route[1]) for route in distinct]
    raw = [None if route is None else route[2] for route in distinct]
    fields = [
        each(topics, ROUTING.field("topic").type),
        keys,
        each(headers, ROUTING.field("headers").type),
        each(raw, ROUTING.field("raw_payload").type),
    ]
    gone = each([route is None for route in distinct], pa.bool_())
    return pa.StructArray.from_arrays(fields, fields=list(ROUTING), mask=gone)


def _pairs(headers: list[list[str]] | None) -> list[tuple[str, ...]] | None:
    return None if headers is None else [tuple(pair) for pair in headers]


def _decoded(texts: pa.BinaryArray) -> pa.StringArray:
    """Return the strings that JSON strings stand for."""
    texts = texts.cast(pa.utf8())
    if pc.any(pc.match_substring(texts, "\\")).as_py():
        return pa.array(orjson.loads(f"[{','.join(texts.to_pylist())}]"), pa.utf8())
    return pc.utf8_slice_codeunits(texts, 1, -1)


def _lines(section: bytes, where: list[int] | None) -> pa.BinaryArray | None:
    """Return the values of a column; None if it has none."""
    if where is not None and not where:
        return None
    data = np.frombuffer(section, np.uint8)
    ends = np.flatnonzero(data == _LINE_END)
    starts = np.concatenate([[0], ends + 1, [len(data) + 1]])
    # Each value is kept with its line end, but for the last; slicing it off costs one pass.
    offsets = (starts - np.arange(len(starts))).astype(np.int32)
    kept = np.delete(data, ends) if len(ends) else data
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(kept)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(starts) - 1, buffers)


def _codes(section: bytes) -> pa.Int32Array:
    return pa.array(np.fromstring(section.decode(), np.int32, sep="\n"))


def _null_aware(values: pa.BinaryArray) -> pa.BinaryArray:
    missing = pc.equal(values, b"null")
    return pc.if_else(missing, None, values) if missing.true_count else values


def _placed(column: pa.Array, values: pa.Array, where: list[int] | None) -> pa.Array:
    """Return a column with ``values`` in the rows ``where``; None: in every row."""
    if where is None:
        return values
    chosen = np.arange(len(column), dtype=np.int64)
    chosen[where] = len(column) + np.arange(len(values))
    return pa.concat_arrays([column, values]).take(pa.array(chosen))
