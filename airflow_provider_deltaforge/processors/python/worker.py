"""A user's function at work, whatever it is given."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA
from airflow_provider_deltaforge.processors.bad_rows import apart
from airflow_provider_deltaforge.processors.changed_events import outcome
from airflow_provider_deltaforge.processors.contract import Processed, Worker
from airflow_provider_deltaforge.processors.event_tables import TablePatterns, belonging
from airflow_provider_deltaforge.processors.python.arrow import Returned
from airflow_provider_deltaforge.processors.python.calls import UserCode
from airflow_provider_deltaforge.processors.python.chosen_rows import one_batch, only
from airflow_provider_deltaforge.processors.python.events import processed

if TYPE_CHECKING:
    from airflow_provider_deltaforge.processors.python.settings import Python


def open_worker(settings: "Python") -> Worker:
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
    return outcome(rows, events, origins, is_new, rejections)
