"""Nested objects to flat keys."""

from typing import Any, ClassVar, Literal

from pydantic import Field, NonNegativeInt, field_validator

from airflow_provider_deltaforge.plugins import load_object
from airflow_provider_deltaforge.processors.contract import Processor, Worker

_WORKER = "airflow_provider_deltaforge.processors.flatten.worker:FlattenWorker"


class Flatten(Processor):
    """Turn nested objects of the row images into flat keys."""

    keeps_tables: ClassVar[bool] = True

    id: str = "flatten"
    separator: str = Field(default="__", min_length=1)
    """Text between the segments of a key."""
    max_depth: NonNegativeInt | None = None
    """Objects at this depth stay as they are; no limit if absent."""
    on_collision: Literal["last", "first", "error"] = "last"
    """Which value wins when two keys become the same."""
    empty_object: Literal["preserve", "drop", "null"] = "preserve"
    """What becomes of an empty object."""
    lists: Literal["preserve", "index"] = "preserve"
    """Keep arrays whole, or turn each element into its own key."""
    empty_list: Literal["preserve", "drop", "null"] = "preserve"
    """What becomes of an empty array."""

    @field_validator("empty_object", "empty_list", mode="before")
    @classmethod
    def _read_null(cls, value: Any) -> Any:
        return "null" if value is None else value  # Without quotes it is YAML's null.

    def open(self) -> Worker:
        """Load the kernels."""
        worker: Worker = load_object(_WORKER)(self)
        return worker
