"""Events that nobody could take: which they are, and what a person reads of them."""

from collections.abc import Sequence

import pyarrow as pa

from airflow_provider_deltaforge.engine.base.last_error import shown
from airflow_provider_deltaforge.engine.render.processed_batch import ProcessedBatch
from airflow_provider_deltaforge.errors import EventError
from airflow_provider_deltaforge.events.message import Rejection
from airflow_provider_deltaforge.events.table_names import qualified_name

_JOURNAL = "set such events aside with spec.journal.enabled: true"


def stop_for_processors(
    processed: ProcessedBatch, rows: pa.RecordBatch, instead: str = f", or {_JOURNAL}"
) -> None:
    """Stop the pipeline where a processor refused an event; nothing of the batch was delivered.

    Args:
        processed: what the processors made of a batch.
        rows: the batch, as the source gave it.
        instead: what else a person can do.

    Raises:
        EventError: there is no dead-letter queue that could take it.
    """
    for refused in processed.refused:
        first = refused.rejections[0]
        raise EventError(
            f"processor {refused.processor_id}: {len(refused.rejections)} of {rows.num_rows} "
            "events cannot be processed; the first, of table "
            f"{table_of(rows, int(refused.origins[0]))}: {shown(first.reason)}. Nothing of the "
            f"batch was delivered: change the processor or the data{instead}, then start again"
        )


def stop_for_sink(
    sink_id: str, rejections: Sequence[Rejection], processed: ProcessedBatch, rows: pa.RecordBatch
) -> None:
    """Stop the pipeline where an event cannot be delivered; the events around it are durable.

    Raises:
        EventError: there is no dead-letter queue that could take it.
    """
    if not rejections:
        return
    first = rejections[0]
    table = table_of(rows, processed.origin(first.event_row))
    raise EventError(
        f"sink {sink_id}: {len(rejections)} of {processed.rows.num_rows} events cannot be "
        f"delivered; the first, of table {table}: {first.kind}: {shown(first.reason)}. Nothing was "
        f"skipped: change the document or the sink, or {_JOURNAL}, then start again"
    )


def table_of(rows: pa.RecordBatch, row: int) -> str:
    """Return the full name of the table that a row is of."""
    if row >= rows.num_rows:
        return "?"
    qualifier = rows.column("schema")[row].as_py() or rows.column("db")[row].as_py()
    return qualified_name(qualifier, rows.column("table")[row].as_py())
