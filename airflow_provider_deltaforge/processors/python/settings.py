"""A function of the user's own, by import path."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from airflow_provider_deltaforge.processors.contract import Processor, Worker
from airflow_provider_deltaforge.processors.python.arrow_types import arrow_type
from airflow_provider_deltaforge.spec.patterns import check_patterns


class Python(Processor):
    """Hand events to a Python function or class, in columns or one by one."""

    id: str = "python"
    function: str = Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")
    """``package.module:name`` of a function, or of a class with ``process`` and, if it holds
    something, ``close``; imported where the stream runs, when it starts."""
    mode: Literal["arrow", "rows", "events"] = "arrow"
    """What it is given: ``arrow``, the batch of change events as a ``pyarrow.RecordBatch``;
    ``rows``, chosen columns of the row images as a ``pyarrow.Table``; ``events``, one dict per
    event."""
    columns: Mapping[str, str] = {}
    """With mode ``rows``: the columns to hand over, name to Arrow type, for example
    ``{id: int64, total: 'decimal128(12, 2)'}``."""
    tables: tuple[str, ...] = ()
    """Patterns of the tables whose events are handed over; the others pass. Empty takes all."""
    params: Mapping[str, Any] = {}
    """Keyword arguments of the function, or of the class when it is made."""

    @field_validator("tables")
    @classmethod
    def _check_tables(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        check_patterns(value, "tables")
        return value

    @model_validator(mode="after")
    def _check_columns(self) -> "Python":
        if (self.mode == "rows") != bool(self.columns):
            raise ValueError("'columns' and mode 'rows' belong together: give both or neither")
        for name, kind in self.columns.items():
            arrow_type(name, kind)
        return self

    def open(self) -> Worker:
        """Import the function and make what it needs.

        Raises:
            SpecError: it cannot be imported or called this way.
        """
        from airflow_provider_deltaforge.processors.python.worker import open_worker

        return open_worker(self)
