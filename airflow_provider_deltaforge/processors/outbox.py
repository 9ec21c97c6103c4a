"""The outbox pattern: described so that documents can be checked, not built yet."""

from collections.abc import Mapping

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.processors.contract import Processor, Worker
from airflow_provider_deltaforge.spec.settings import Settings

_UNBUILT = "processor type 'outbox'"


class Columns(Settings):
    """Where an outbox row keeps what."""

    payload: str = "payload"
    """Column with the event's body."""
    aggregate_type: str = "aggregate_type"
    """Column with the kind of aggregate."""
    aggregate_id: str = "aggregate_id"
    """Column with the aggregate's id, which is also the default key."""
    event_type: str = "event_type"
    """Column with the kind of event."""
    topic: str = "topic"
    """Column with a ready-made topic."""
    event_id: str = "id"
    """Column sent as the header ``df-event-id``."""


class Outbox(Processor):
    """Turn outbox rows into routed domain events; everything else passes."""

    id: str = "outbox"
    tables: tuple[str, ...] = ()
    """Patterns of the outbox tables or message prefixes taken; empty takes all."""
    topic: str | None = None
    """Template over the outbox row's own columns, for example ``${aggregate_type}``."""
    default_topic: str | None = None
    """Topic when neither the template nor the column gives one."""
    key: str | None = None
    """Template over the outbox row's own columns; the aggregate's id if absent."""
    columns: Columns = Columns()
    """Names of the outbox columns."""
    additional_headers: Mapping[str, str] = {}
    """Headers to add: name to column."""
    raw_payload: bool = False
    """Send the payload alone, without envelope."""
    strict: bool = False
    """Fail the batch when a field is missing, instead of leaving it out."""

    def unbuilt(self) -> list[str]:
        """Name the whole processor."""
        return [_UNBUILT]

    def open(self) -> Worker:
        """Refuse.

        Raises:
            SpecError: always.
        """
        raise SpecError(f"{_UNBUILT} is not part of this release; remove it from the document")
