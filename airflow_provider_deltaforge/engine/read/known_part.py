"""What of the log is known already, when it is read again from before there."""

from airflow_provider_deltaforge.engine.read.batcher import rows_upto, split_at
from airflow_provider_deltaforge.events.change import ChangeBatch, Position
from airflow_provider_deltaforge.sources.contract import Source


class KnownPart:
    """Leaves out what lies before a place in the log, whole transactions. Used by one thread.

    Args:
        source: compares positions.
        upto: everything up to it is known; None: nothing is.
    """

    def __init__(self, source: Source, upto: Position | None) -> None:
        self._covers = source.covers
        self._upto = upto

    def rest(self, batch: ChangeBatch) -> ChangeBatch | None:
        """Return what of a batch lies behind the place; None where nothing does."""
        upto, covers = self._upto, self._covers
        if upto is None:
            return batch
        is_inside = covers(upto, batch.end)
        if is_inside and not covers(batch.end, upto):
            return None
        self._upto = None
        _, rest = split_at(batch, rows_upto(batch, upto, covers), batch.end)
        is_empty = rest.rows.num_rows == 0 and not rest.open_tx
        return None if is_inside and is_empty else rest
