"""Which rows became durable in a pipeline's sinks since somebody last looked.

Counts come with the driver's heartbeats. They never name a row too early: what a checkpoint does
not cover is not counted. After a driver was killed, or another generation was started, some rows
may have arrived that nobody counted; ``is_exact`` is False then.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.records.control import Control

_LACKING = ("behind", "catching_up", "given_up")


@dataclass(frozen=True, slots=True)
class Arrivals:
    """What had arrived when it was looked; of a pipeline that never ran, nothing.

    Attributes:
        generation: counts begin anew with each.
        gaps: how many lanes were killed before they could say what they had counted.
        tables: rows by full name of the table.
        position: of the source's log: every sink holds what lies before it but those that lack
            something; None where nothing of the log is durable yet, as during the first copy.
        at_ms: when the driver said so, by its clock.
        lacking: sinks that are behind the others, or given up.
    """

    generation: int = 0
    gaps: int = 0
    tables: Mapping[str, int] = field(default_factory=dict)
    position: Mapping[str, Any] | None = None
    at_ms: int = 0
    lacking: tuple[str, ...] = ()

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> "Arrivals":
        """Return what ``as_dict`` made JSON of, perhaps in another release."""
        return cls(**{key.name: stored[key.name] for key in fields(cls) if key.name in stored})

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {**asdict(self), "lacking": list(self.lacking)}

    def only(self, table: str | None) -> "Arrivals":
        """Return the same for one table, if one is named."""
        if table is None:
            return self
        tables = {table: self.tables[table]} if table in self.tables else {}
        return Arrivals(self.generation, self.gaps, tables, self.position, self.at_ms, self.lacking)

    def since(self, former: "Arrivals") -> "ArrivedRows":
        """Return what arrived after ``former``."""
        same = self.generation == former.generation
        before = former.tables if same else {}
        rows = {name: count - before.get(name, 0) for name, count in self.tables.items()}
        rows = {name: count for name, count in rows.items() if count > 0}
        is_exact = same and self.gaps == former.gaps
        return ArrivedRows(rows, self.position, former.position, is_exact, self.generation)


@dataclass(frozen=True, slots=True)
class ArrivedRows:
    """Rows that arrived between two looks."""

    tables: Mapping[str, int]
    position: Mapping[str, Any] | None
    from_position: Mapping[str, Any] | None
    is_exact: bool
    generation: int

    @property
    def is_empty(self) -> bool:
        """Return whether it is sure that nothing arrived."""
        return not self.tables and (self.is_exact or self.position == self.from_position)

    def as_payload(self, pipeline: str, table: str | None = None) -> dict[str, Any]:
        """Return what an event of an asset carries.

        Args:
            pipeline: the pipeline's name.
            table: full name of the only table that counts; None: all.
        """
        tables = {name: rows for name, rows in self.tables.items() if table in (None, name)}
        return {
            "pipeline": pipeline,
            "tables": tables,
            "rows": sum(tables.values()),
            "exact": self.is_exact,
            "position": None if self.position is None else dict(self.position),
            "from_position": None if self.from_position is None else dict(self.from_position),
            "generation": self.generation,
        }


def copied_rows(now: Arrivals, counts: Mapping[str, Any]) -> ArrivedRows:
    """Return the rows of a copy as rows that arrived.

    Args:
        now: what has arrived in all.
        counts: of the copy, as ``control.snapshots.progress`` has them.
    """
    rows = {name: int(table["rows"]) for name, table in counts.get("tables", {}).items()}
    return ArrivedRows(rows, now.position, None, is_exact=True, generation=now.generation)


def arrivals(store: Store, pipeline: str) -> Arrivals:
    """Return what has arrived, by the driver's last heartbeat."""
    progress = Control(store, pipeline).progress()
    if progress is None:
        return Arrivals()
    return Arrivals(
        progress.generation,
        progress.count_gaps,
        {name: counts.durable for name, counts in progress.tables.items() if counts.durable},
        progress.position,
        progress.heartbeat_at_ms,
        tuple(name for name, sink in progress.sinks.items() if sink.status in _LACKING),
    )
