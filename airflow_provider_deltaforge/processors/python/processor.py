"""A function of the user's own, by import path."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field, field_validator, model_validator

from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA
from airflow_provider_deltaforge.processors.bad_rows import apart
from airflow_provider_deltaforge.processors.changed_events import outcome
from airflow_provider_deltaforge.processors.contract import Processed, Processor, Worker
from airflow_provider_deltaforge.processors.event_tables import TablePatterns, belonging
from airflow_provider_deltaforge.processors.python.arrow import Returned
from airflow_provider_deltaforge.processors.python.arrow_types import arrow_type
from airflow_provider_deltaforge.processors.python.calls import UserCode
from airflow_provider_deltaforge.processors.python.chosen_rows import one_batch, only
from airflow_provider_deltaforge.processors.python.events import processed
from airflow_provider_deltaforge.spec.patterns import check_patterns


class Python(Processor):
    """Hand events to a Python function or class, in columns or one by one."""

    template_fields: ClassVar[frozenset[str]] = frozenset({"params"})

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
        return open_worker(self)


def open_worker(settings: Python) -> Worker:
    """Import a function and return what calls it in its mode.

    Raises:
        SpecError: it cannot be imported or called.
    """
    code = UserCode(settings.function, settings.params)
    if settings.mode == "events":
        return _PythonWorker(code, settings.tables, lambda rows: processed(rows, code))
    if settings.mode == "rows":
        from airflow_provider_deltaforge.processors.python.rows import RowCalls

        return _PythonWorker(code, settings.tables, RowCalls(code, settings.columns).processed)
    return _PythonWorker(code, settings.tables, lambda rows: _in_columns(rows, code))


class _PythonWorker:
    """Hands over the events of some tables, and puts the others back where they were."""

    def __init__(
        self,
        code: UserCode,
        tables: tuple[str, ...],
        process: Callable[[pa.RecordBatch], Processed],
    ) -> None:
        self._code = code
        self._tables = TablePatterns(tables) if tables else None
        self._process = process

    def process(self, rows: pa.RecordBatch) -> Processed:
        """Return what the function makes of the batch.

        Raises:
            EventError: it fails for most of the events.
            FatalError: it returns something else than events.
        """
        if self._tables is None:
            return self._process(rows)
        return only(rows, belonging(rows, self._tables.take), self._process)

    def close(self) -> None:
        """Close what the user's class holds. Safe to call twice."""
        self._code.close()


def _in_columns(rows: pa.RecordBatch, code: UserCode) -> Processed:
    parts, rejections = apart(rows, lambda part: Returned(part, code(part), code.name))
    if not parts:
        return Processed(rows.slice(0, 0), pa.array([], pa.int32()), None, rejections)
    origins = np.concatenate([part.origins + start for start, part in parts]).astype(np.int32)
    made = [
        part.made if part.made is not None else pa.array(np.zeros(part.rows.num_rows, np.bool_))
        for _, part in parts
    ]
    batches = [part.rows for _, part in parts]
    whole = batches[0] if len(batches) == 1 else one_batch(pa.Table.from_batches(batches))
    events = pa.RecordBatch.from_arrays(whole.columns, schema=CHANGE_SCHEMA)
    is_new = pa.concat_arrays(made) if any(part.made is not None for _, part in parts) else None
    done = outcome(rows, events, origins, is_new, rejections)
    if all(part.placed is None for _, part in parts):
        return done
    none = [np.zeros(part.rows.num_rows, np.bool_) for _, part in parts]
    placed = [
        pa.array(no) if part.placed is None else part.placed
        for no, (_, part) in zip(none, parts, strict=True)
    ]
    return replace(done, placed=pa.concat_arrays(placed))
