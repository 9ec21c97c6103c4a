"""The positions of batches as they can be kept with them: by the archive of the log."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_deltaforge.events.position import Position, Positions

if TYPE_CHECKING:
    import numpy as np

    from airflow_provider_deltaforge.events.change import ChangeBatch


def _no_numbers() -> "np.ndarray":
    import numpy as np

    return np.empty((0, 0), np.int64)


@dataclass(frozen=True, slots=True)
class PackedPositions:
    """The positions of a batch, as they are kept with it. Only the source reads them.

    Attributes:
        header: as JSON.
        numbers: int64, transactions by columns; no columns where the header says everything.
    """

    header: Mapping[str, Any]
    numbers: "np.ndarray" = field(default_factory=_no_numbers)


@dataclass(frozen=True, slots=True)
class ListedPositions:
    """Positions written out one by one, at least one."""

    ends: Sequence[Position]

    def after(self, tx: int) -> Position:
        """Return where reading may resume once transaction ``tx`` and all before it are durable."""
        return self.ends[min(tx, len(self.ends) - 1)]

    @classmethod
    def packed(cls, batch: "ChangeBatch") -> PackedPositions:
        """Return the positions of a batch as they can be kept, whatever they are."""
        rows = batch.rows
        count = int(rows.column("tx")[-1].as_py()) + 1 if rows.num_rows else int(batch.continues)
        return PackedPositions({"after": [dict(batch.positions.after(tx)) for tx in range(count)]})

    @classmethod
    def unpacked(cls, packed: PackedPositions, end: Position) -> "ListedPositions":
        """Return positions as they were before ``packed``, of a batch that ends at ``end``."""
        return cls(packed.header["after"] or (end,))


class PacksPositions:
    """What a source makes of the positions of its batches."""

    def pack_positions(self, batch: "ChangeBatch") -> PackedPositions:
        """Return the positions of a batch of the log, to be kept with it."""
        return ListedPositions.packed(batch)

    def unpack_positions(self, packed: PackedPositions, end: Position) -> Positions:
        """Return the positions of a batch that ends at ``end``, as they were."""
        return ListedPositions.unpacked(packed, end)
