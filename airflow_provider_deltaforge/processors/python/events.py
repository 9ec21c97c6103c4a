"""Functions that are given one event at a time, as a dict."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA
from airflow_provider_deltaforge.events.message import Rejection
from airflow_provider_deltaforge.processors.bad_rows import RowsError
from airflow_provider_deltaforge.processors.changed_events import OPS, replaced, taken
from airflow_provider_deltaforge.processors.contract import Processed
from airflow_provider_deltaforge.processors.event_tables import full_name, tables_of
from airflow_provider_deltaforge.processors.json_objects import (
    DepthError,
    parsed,
    wide_integers,
    written,
)

_TOO_DEEP = "returned something that is nested too deep to be compared"

_IMAGES = ("before", "after", "key")
_PLACE = ("db", "schema", "table")
_ROUTING = ("topic", "key", "headers", "raw_payload")
_PLAIN = ("op", "ts_ms", "tags", "schema_version", "schema_sequence", "synthetic")
_READ_ONLY = ("table", "transaction", "schema_version", "schema_sequence", "synthetic", "ddl")
_KEYS = frozenset({*_IMAGES, *_PLAIN, *_READ_ONLY, "source", "event_id", "routing"})
_LONG = range(-(2**63), 2**63)


class EventDicts:
    """The events of one batch.

    An event has the native event's keys, all of them always, and ``table`` (``shop.orders``),
    ``key`` and ``routing`` besides; ``source`` holds where the row belongs, not its position.
    """

    def __init__(self, rows: pa.RecordBatch) -> None:
        self._columns = {
            name: _values(rows.column(name))
            for name in (*_IMAGES, *_PLAIN, *_PLACE, "ddl", "routing", "tx_id")
        }
        self._ids = [_uuid(raw) for raw in rows.column("event_id").to_pylist()]
        tables, index = tables_of(rows)
        names = [full_name(table) for table in tables]
        self._tables = [names[at] for at in index.tolist()]
        self._wide = {name: wide_integers(rows.column(name)) for name in (*_IMAGES, "ddl")}

    def event(self, row: int) -> dict[str, Any]:
        """Return one event, new at every call.

        Raises:
            RowsError: an image of it is no JSON.
        """
        columns = self._columns
        tags, tx_id = columns["tags"][row], columns["tx_id"][row]
        return {
            "before": self._object("before", row),
            "after": self._object("after", row),
            "source": {name: columns[name][row] for name in _PLACE},
            "table": self._tables[row],
            "op": columns["op"][row],
            "ts_ms": columns["ts_ms"][row],
            "key": self._object("key", row),
            "event_id": self._ids[row],
            "transaction": None if tx_id is None else {"id": tx_id},
            "schema_version": columns["schema_version"][row],
            "schema_sequence": columns["schema_sequence"][row],
            "ddl": self._object("ddl", row),
            "tags": None if tags is None else [*tags],
            "synthetic": columns["synthetic"][row],
            "routing": _routing(columns["routing"][row]),
        }

    def changes(self, row: int, result: Any) -> tuple[dict[str, Any], bool]:
        """Return the columns that differ in a dict that came back, and if it stands for the event.

        Keys that are left out stay as they are. A dict with another id is a new event.

        Raises:
            RowsError: it is no event.
        """
        if not isinstance(result, dict):
            raise RowsError(
                f"returned a {type(result).__name__}; return a dict, a list of dicts, or None"
            )
        if not result.keys() <= _KEYS:
            unknown = next(key for key in result if key not in _KEYS)
            raise RowsError(f"returned the key {unknown!r}, which no event has")
        stands = result.get("event_id") in (None, self._ids[row])
        if stands:
            self._refuse_read_only(row, result)
        changed: dict[str, Any] = {}
        for name in _IMAGES:
            if name in result and self._differs(name, row, result[name]):
                changed[name] = None if result[name] is None else _json(name, result[name])
        for name, value in _flat(result).items():
            if value != self._columns[name][row]:
                changed[name] = value
        return changed, stands

    def _object(self, name: str, row: int) -> Any:
        text = self._columns[name][row]
        if text is None:
            return None
        try:
            return parsed(text, wide=self._wide[name][row])
        except DepthError:
            raise RowsError(f"{name} is nested too deep for Python") from None
        except ValueError:
            raise RowsError(f"{name} is no JSON") from None

    def _differs(self, name: str, row: int, value: Any) -> bool:
        """Return whether an image has other values than before, however they are written."""
        former = self._columns[name][row]
        if former is None or value is None:
            return former is not value
        text = _json(name, value)
        return text != former and text != written(self._object(name, row))

    def _refuse_read_only(self, row: int, result: dict[str, Any]) -> None:
        for name in _READ_ONLY:
            value = result.get(name)
            if value is not None and value != self._read_only(name, row):
                hint = "; change source" if name == "table" else ""
                raise RowsError(f"changed {name!r}, which cannot be changed{hint}")

    def _read_only(self, name: str, row: int) -> Any:
        if name == "table":
            return self._tables[row]
        if name == "transaction":
            return {"id": self._columns["tx_id"][row]}
        return self._object(name, row) if name == "ddl" else self._columns[name][row]


def _flat(result: dict[str, Any]) -> dict[str, Any]:
    """Return the other keys that are there under the names of their columns, checked."""
    found: dict[str, Any] = {}
    if "op" in result:
        _demand(
            isinstance(result["op"], str) and result["op"] in OPS,
            "op",
            "one of c, u, d, r, t and ddl",
        )
        found["op"] = result["op"]
    if "ts_ms" in result:
        _demand(type(result["ts_ms"]) is int and result["ts_ms"] in _LONG, "ts_ms", "an integer")
        found["ts_ms"] = result["ts_ms"]
    if "tags" in result:
        tags = result["tags"]
        texts = isinstance(tags, list) and all(map(_is_text, tags))
        _demand(tags is None or texts, "tags", "a list of texts, or None")
        found["tags"] = tags
    if "source" in result:
        source = result["source"]
        fits = isinstance(source, dict) and set(source) <= set(_PLACE)
        _demand(fits, "source", "a dict of db, schema and table")
        for name, value in source.items():
            _demand(_is_text(value) or (name == "schema" and value is None), name, "text")
            found[name] = value
    if "routing" in result:
        found["routing"] = _routed(result["routing"])
    return found


def _routed(routing: Any) -> Any:
    """Return routing as Arrow has it."""
    if routing is None:
        return None
    fits = isinstance(routing, dict) and set(routing) <= set(_ROUTING)
    _demand(fits, "routing", "a dict of topic, key, headers and raw_payload, or None")
    whole = {name: routing.get(name) for name in _ROUTING}
    for name in ("topic", "key"):
        _demand(whole[name] is None or _is_text(whole[name]), f"routing.{name}", "text")
    raw, headers = whole["raw_payload"], whole["headers"]
    _demand(raw is None or isinstance(raw, bool), "routing.raw_payload", "true or false")
    if headers is not None:
        fits = isinstance(headers, dict) and all(
            _is_text(part) for item in headers.items() for part in item
        )
        _demand(fits, "routing.headers", "a dict of texts")
        whole["headers"] = [*headers.items()]
    return None if all(value is None for value in whole.values()) else whole


def _routing(routing: dict[str, Any] | None) -> dict[str, Any] | None:
    if routing is None:
        return None
    headers = routing["headers"]
    return {**routing, "headers": None if headers is None else dict(headers)}


def _is_text(value: Any) -> bool:
    """Return whether a value is text that can be written; half a surrogate pair is none."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _demand(fits: bool, name: str, what: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not fits:
        raise RowsError(f"returned {name} that is not {what}")


def _json(name: str, value: Any) -> bytes:
    try:
        return written(value)
    except DepthError:
        raise RowsError(f"returned {name} that is nested too deep to be written") from None
    except (TypeError, ValueError) as error:
        raise RowsError(f"returned {name} that is not JSON: {error}") from None


def _uuid(raw: bytes) -> str:
    text = raw.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _values(column: pa.Array) -> list[Any]:
    if isinstance(column, pa.DictionaryArray):
        column = column.cast(pa.utf8())
    return column.to_pylist()  # type: ignore[no-any-return]


def processed(rows: pa.RecordBatch, call: Callable[[dict[str, Any]], Any]) -> Processed:
    """Call a function with each event, and return what it made of them.

    Args:
        rows: change events.
        call: returns a dict, a list of them, or None; raises ``RowsError``.
    """
    events = EventDicts(rows)
    collected = _Collected()
    rejections: list[Rejection] = []
    dropped = 0
    for row in range(rows.num_rows):
        try:
            results = _several(call(events.event(row)))
            changes = [events.changes(row, result) for result in results]
        except (RowsError, RecursionError) as error:
            bad = error if isinstance(error, RowsError) else RowsError(_TOO_DEEP)
            rejections.append(bad.about(row, rows.slice(row, 1)))
            continue
        dropped += not changes
        own = False
        for changed, stands in changes:
            collected.add(row, changed, made=own or not stands)
            own = own or stands
    origins = np.array(collected.origins, np.int32)
    kept = taken(rows, origins)
    return Processed(
        replaced(kept, collected.columns(kept)),
        pa.array(origins),
        pa.array(collected.made, pa.bool_()) if any(collected.made) else None,
        rejections,
        {"dropped": dropped} if dropped else {},
    )


def _several(result: Any) -> list[Any]:
    if result is None:
        return []
    return list(result) if isinstance(result, (list, tuple)) else [result]


@dataclass
class _Collected:
    """Events that were returned: the row each belongs to, and what differs from it."""

    origins: list[int] = field(default_factory=list)
    made: list[bool] = field(default_factory=list)
    changed: dict[str, dict[int, Any]] = field(default_factory=dict)

    def add(self, row: int, changes: dict[str, Any], *, made: bool) -> None:
        for name, value in changes.items():
            self.changed.setdefault(name, {})[len(self.origins)] = value
        self.origins.append(row)
        self.made.append(made)

    def columns(self, kept: pa.RecordBatch) -> dict[str, pa.Array]:
        columns = {}
        for name, changes in self.changed.items():
            values = kept.column(name).to_pylist()
            for at, value in changes.items():
                values[at] = value
            kind = CHANGE_SCHEMA.field(name).type
            columns[name] = pa.array(values, pa.utf8() if pa.types.is_dictionary(kind) else kind)
        return columns
