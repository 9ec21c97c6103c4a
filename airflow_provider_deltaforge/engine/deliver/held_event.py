"""Finds in a batch the event that a sink holds last, also where the document leaves it out now.

Where a sink came to inside a batch is known by that event alone. Somebody may have changed the
document since, so that a filter drops the event: the sink is still to go on behind it. So it is
looked for among the messages, then among the events that the processors let through, then among the
rows of the log.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.engine.render.key_changes import delete_ids
from airflow_provider_deltaforge.engine.render.processed_batch import ProcessedBatch
from airflow_provider_deltaforge.events.message import Messages


@dataclass(frozen=True, slots=True)
class LogRows:
    """What the messages of a batch were made of; looked at only where an event is sought.

    Attributes:
        source: the batch as it was read.
        processed: what the processors made of it; the messages' ``event_rows`` count in its rows.
    """

    source: pa.RecordBatch
    processed: ProcessedBatch

    def __len__(self) -> int:
        """Return how many rows of the log there are."""
        return int(self.source.num_rows)


def rest_behind(event_id: bytes, messages: Messages, log: LogRows | None) -> Messages | None:
    """Return the messages behind an event that a sink holds; None: it is not in this batch.

    Args:
        event_id: the event.
        messages: of the batch, for that sink.
        log: what they were made of; None where that is not at hand.
    """
    places = _rows_of(event_id, messages.event_ids)
    if len(places):
        return messages.take(pa.array(np.arange(places[-1] + 1, len(messages), dtype=np.int32)))
    first = None if log is None else _first_lacking(event_id, log)
    if log is None or first is None:
        return None
    return messages.take(pa.array(np.flatnonzero(messages.event_rows.to_numpy() >= first)))


def _first_lacking(event_id: bytes, log: LogRows) -> int | None:
    """Return the first processed row that a sink lacks which holds an event without a message."""
    processed = log.processed.rows["event_id"]
    if len(rows := _rows_of(event_id, processed)):
        return int(rows[-1]) + 1
    if len(rows := _rows_of(event_id, delete_ids(processed))):
        return int(rows[-1])  # The delete under the row's old key is held, the row is not.
    origins = log.processed.origins
    if origins is None:
        return None
    source = log.source["event_id"]
    rows = _rows_of(event_id, source)
    if not len(rows):
        rows = _rows_of(event_id, delete_ids(source))
    # What else was made of the same row may have lain on either side: twice is better than never.
    return int(np.searchsorted(origins, rows[-1])) if len(rows) else None


def _rows_of(event_id: bytes, ids: pa.FixedSizeBinaryArray) -> np.ndarray:
    same = pc.equal(ids, pa.scalar(event_id, ids.type))
    return np.flatnonzero(np.asarray(same))
