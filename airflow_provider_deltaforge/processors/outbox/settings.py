"""The outbox pattern: rows of outbox tables and logical messages become routed domain events."""

from collections.abc import Mapping
from typing import ClassVar

from pydantic import field_validator

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.plugins import load_object
from airflow_provider_deltaforge.processors.contract import Processor, Worker
from airflow_provider_deltaforge.spec.patterns import check_patterns
from airflow_provider_deltaforge.spec.settings import Settings
from airflow_provider_deltaforge.spec.template import Template, without_variables

_WORKER = "airflow_provider_deltaforge.processors.outbox.worker:OutboxWorker"

_OWN_HEADERS = "df-"


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

    keeps_tables: ClassVar[bool] = True

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
    parse_payload: bool = False
    """Take a payload that is text for the JSON in it, if it holds JSON: from columns of text, and
    on MariaDB, where columns of type JSON are text."""
    strict: bool = False
    """Refuse messages that lack topic, payload, aggregate type, aggregate id or event type, or that
    are no object, instead of leaving out what is missing and dropping what is no object."""

    @field_validator("tables")
    @classmethod
    def _patterns(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        check_patterns(value, "tables")
        return value

    @field_validator("topic", "key")
    @classmethod
    def _templates(cls, value: str | None) -> str | None:
        try:
            Template.parse(without_variables(value or ""))
        except SpecError as error:
            raise ValueError(str(error)) from error
        return value

    @field_validator("additional_headers")
    @classmethod
    def _headers(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        for name in value:
            if name.lower().startswith(_OWN_HEADERS):
                raise ValueError(
                    f"header {name!r}: headers that begin with 'df-' are the processor's own; say "
                    "under 'columns' what they are filled from, or choose another name"
                )
        return value

    def open(self) -> Worker:
        """Start the worker."""
        worker: Worker = load_object(_WORKER)(self)
        return worker
