"""What a fleet that a supervisor has started says of its documents."""

from typing import Literal

from pydantic import Field

from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.contract import Put, Store
from airflow_provider_deltaforge.storage.records.record import Record

_KEY_MARK = "@"
"""No pipeline's name can hold it."""


class FleetContents(Record):
    """The pipelines of a fleet, and what is wrong with them as the fleet sees it."""

    v: Literal[1] = 1
    pipelines: list[str] = Field(default_factory=list)
    """Those that the documents name."""
    given_up: list[str] = Field(default_factory=list)
    """Those whose driver ended for good: no restart cured it, or the restarts are spent."""
    troubles: dict[str, str] = Field(default_factory=dict)
    """Why a document is not used, or its pipeline not started, by file or pipeline."""

    @property
    def words(self) -> str | None:
        """Return what is wrong, in words; None when nothing is."""
        parts = []
        if self.given_up:
            parts.append(f"failed: {', '.join(self.given_up)}")
        if self.troubles:
            parts.append(f"not used: {', '.join(self.troubles)}")
        return f"degraded, {'; '.join(parts)}" if parts else None


def record_name(fleet: str) -> str:
    """Return the key of a fleet's control record, among those of pipelines."""
    return f"fleet{_KEY_MARK}{fleet}"


def fleet_name(record: str) -> str | None:
    """Return the fleet whose control record has this key; None of a pipeline's."""
    kind, mark, name = record.partition(_KEY_MARK)
    return name if mark and kind == "fleet" else None


def read_contents(store: Store, record: str) -> FleetContents:
    """Return what a fleet wrote last; nothing before it began."""
    text = store.get(names.FLEETS, record)
    if text is None:
        return FleetContents()
    return FleetContents.from_stored(text, f"what {record!r} says of its documents")


def put_contents(record: str, contents: FleetContents) -> Put:
    """Return the write that replaces it, for a fenced transaction."""
    return Put(names.FLEETS, record, contents.model_dump_json().encode())
