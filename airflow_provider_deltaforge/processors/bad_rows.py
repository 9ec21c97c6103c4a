"""Which events of a batch are bad, when all that is known is that some are."""

from collections.abc import Callable
from typing import TypeVar

import pyarrow as pa

from airflow_provider_deltaforge.errors import EventError
from airflow_provider_deltaforge.events.message import Rejection
from airflow_provider_deltaforge.processors.contract import rejected
from airflow_provider_deltaforge.processors.quoted_values import without_values

Result = TypeVar("Result")

_FEW = 20


class RowsError(Exception):
    """Some events of those given cannot be processed; the text may quote their values.

    Args:
        text: why.
        place: added to the text; it quotes no values.
    """

    def __init__(self, text: str, place: str = "") -> None:
        super().__init__(text)
        self.place = place

    def about(self, row: int, event: pa.RecordBatch) -> Rejection:
        """Return the rejection of one event, without its values.

        Args:
            row: its row in the batch.
            event: the event alone.
        """
        return rejected(row, without_values(str(self), event) + self.place)


def apart(
    rows: pa.RecordBatch, attempt: Callable[[pa.RecordBatch], Result]
) -> tuple[list[tuple[int, Result]], list[Rejection]]:
    """Process a batch in one piece, or else in halves until the bad events stand alone.

    Args:
        rows: the batch.
        attempt: processes a part of it, and raises ``RowsError``. A part may be given again.

    Returns:
        What was made of each part that could be processed, with the row it begins at, in order;
        and a rejection for each event that could not.

    Raises:
        EventError: more than half of the events (and more than twenty) are bad: then it is
            rather the function or query than the events.
    """
    most = max(_FEW, rows.num_rows // 2)
    done: list[tuple[int, Result]] = []
    rejections: list[Rejection] = []
    waiting = [(0, rows.num_rows)]
    while waiting:
        start, stop = waiting.pop()
        part = rows.slice(start, stop - start)
        try:
            done.append((start, attempt(part)))
        except RowsError as error:
            if stop - start > 1:
                middle = (start + stop) // 2
                waiting += [(middle, stop), (start, middle)]
                continue
            rejections.append(error.about(start, part))
            if len(rejections) > most:
                raise EventError(
                    f"more than {most} of {rows.num_rows} events cannot be processed; the first: "
                    f"{rejections[0].reason}"
                ) from None
    return done, rejections
