"""Positions: what they hold, and how they compare."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.errors import PositionLostError
from airflow_provider_deltaforge.events.change import Position


@dataclass(frozen=True)
class FilePosition:
    """A place in what one mode reads.

    Attributes:
        mode: ``native``, ``triggers`` or ``polling``.
        change_id: of the last change read; None with polling.
        change_time: when it was made, which tells a replaced file; 0 when not known.
        tables: with polling, the last value of each table's tracking column.
        schemas: with native and triggers, each captured table's fingerprint at that place: what
            is not among them had rows before it was followed.
        also: the same place in the other modes that the file offers, for a pipeline with
            ``auto`` that began with one of them.
    """

    mode: str
    change_id: int | None = None
    change_time: int = 0
    tables: Mapping[str, Any] = field(default_factory=dict)
    schemas: Mapping[str, str] = field(default_factory=dict)
    also: tuple["FilePosition", ...] = ()

    def as_json(self) -> Position:
        """Return the position as it is stored."""
        out: dict[str, Any] = {
            "mode": self.mode,
            "last_change_id": self.change_id,
            "table_positions": dict(self.tables),
        }
        if self.change_time:
            out["last_change_time"] = self.change_time
        if self.schemas:
            out["schemas"] = dict(self.schemas)
        if self.also:
            out["also"] = [place.as_json() for place in self.also]
        return out

    @classmethod
    def from_json(cls, position: Position) -> "FilePosition":
        """Read a stored position."""
        last = position.get("last_change_id")
        return cls(
            str(position.get("mode") or "native"),
            None if last is None else int(last),
            int(position.get("last_change_time") or 0),
            dict(position.get("table_positions") or {}),
            dict(position.get("schemas") or {}),
            tuple(cls.from_json(other) for other in position.get("also") or ()),
        )

    def within(self, mode: str) -> "FilePosition | None":
        """Return this place in a mode; None where that is not known."""
        return next((place for place in (self, *self.also) if place.mode == mode), None)


def compare(left: Position, right: Position) -> int:
    """Return -1, 0 or 1 as ``left`` lies before, at or after ``right``.

    Raises:
        PositionLostError: the two cannot be ordered: they are of two modes, or, with polling, each
            is ahead in a table of its own.
    """
    a, b = _in_one_mode(FilePosition.from_json(left), FilePosition.from_json(right))
    if a.mode != b.mode:
        raise PositionLostError(
            f"positions of the modes {a.mode} and {b.mode} cannot be ordered; take a new snapshot"
        )
    if a.mode != "polling":
        first, second = a.change_id or 0, b.change_id or 0
        return (first > second) - (first < second)
    ahead = any(_after(value, b.tables.get(name)) for name, value in a.tables.items())
    behind = any(_after(value, a.tables.get(name)) for name, value in b.tables.items())
    if ahead and behind:
        raise PositionLostError(
            "each of two positions is ahead in a table of its own, so neither is the later one; "
            "let each query poll one table, or set cdc_mode to native or triggers"
        )
    return ahead - behind


def covers(at: Position, position: Position) -> bool:
    """Return whether everything up to ``position`` is also before ``at``.

    Raises:
        PositionLostError: the two are of two modes.
    """
    a, b = _in_one_mode(FilePosition.from_json(at), FilePosition.from_json(position))
    if a.mode != "polling" or b.mode != "polling":
        return compare(at, position) >= 0
    return not any(_after(value, a.tables.get(name)) for name, value in b.tables.items())


def polled_by_all(positions: Sequence[Position]) -> Position | None:
    """Return how far each table was polled by all positions; None for those of other modes."""
    all_modes = [FilePosition.from_json(position) for position in positions]
    places = [place.within("polling") for place in all_modes]
    if not any(place.mode == "polling" for place in all_modes) or None in places:
        return None
    polled = [place.tables for place in places if place is not None]
    common = set.intersection(*(set(tables) for tables in polled))
    least = {name: min(tables[name] for tables in polled) for name in sorted(common)}
    return FilePosition("polling", tables=least).as_json()


def visible_in(cut: Position, source_positions: pa.DictionaryArray) -> Any:
    """Return which changes a view with this cut contained, a bool array by row.

    Args:
        cut: the number of the last change that was made before the view opened.
        source_positions: of changes, ``"change_id":N``.
    """
    place = FilePosition.from_json(cut)
    if place.mode == "polling" or place.change_id is None:  # What it finds has no number.
        return np.zeros(len(source_positions), np.bool_)
    texts = source_positions.dictionary.to_pylist()
    numbers = np.array([int(text.partition(b":")[2]) for text in texts], np.int64)
    return numbers[source_positions.indices.to_numpy()] <= place.change_id


def _in_one_mode(a: FilePosition, b: FilePosition) -> tuple[FilePosition, FilePosition]:
    same = a.within(b.mode)
    return (same, b) if same is not None else (a, b.within(a.mode) or b)


def _after(left: Any, right: Any) -> bool:
    """Return whether a tracking value lies after another; None lies before every value."""
    if left is None or right is None:
        return left is not None
    return bool(left > right)
