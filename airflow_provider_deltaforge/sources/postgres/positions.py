"""Positions of the write-ahead log: what they hold, how they compare, and those inside a batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from airflow_provider_deltaforge.errors import PositionLostError
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.sources.shared.packed_positions import PackedPositions

_PAGE = 8192
_PAGE_HEADERS = (24, 40)
"""Bytes of the header of a page, and of the first page of a file."""


def parse_lsn(text: str) -> int:
    """Return a log sequence number such as ``16/B374D848`` as an integer."""
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) | int(low, 16)


def lsn_text(lsn: int) -> str:
    """Return a log sequence number as the server writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


@dataclass(frozen=True, slots=True)
class WalPosition:
    """A place between two transactions: those whose commit record ends at or before it are done.

    Attributes:
        lsn: log sequence number.
        system_id: names the cluster whose log it is; its standbys share it.
        timeline: of the server that sent it; every promotion starts another.
    """

    lsn: int
    system_id: str
    timeline: int

    def as_json(self) -> Position:
        """Return the position as it is stored."""
        return {
            "lsn": lsn_text(self.lsn),
            "system_id": self.system_id,
            "timeline": self.timeline,
        }

    @classmethod
    def from_json(cls, position: Position) -> "WalPosition":
        """Read a stored position."""
        return cls(
            parse_lsn(str(position["lsn"])),
            str(position.get("system_id") or ""),
            int(position.get("timeline") or 0),
        )


def compare(left: Position, right: Position) -> int:
    """Return -1, 0 or 1 as ``left`` lies before, at or after ``right``.

    Raises:
        PositionLostError: they belong to two clusters, whose logs cannot be ordered.
    """
    a, b = WalPosition.from_json(left), WalPosition.from_json(right)
    if a.system_id and b.system_id and a.system_id != b.system_id:
        raise PositionLostError(
            f"positions {lsn_text(a.lsn)} of cluster {a.system_id} and {lsn_text(b.lsn)} of "
            f"cluster {b.system_id} cannot be ordered; take a new snapshot of the tables"
        )
    return (a.lsn > b.lsn) - (a.lsn < b.lsn)


@dataclass(frozen=True, slots=True)
class WalTxPositions:
    """The positions behind a batch's transactions.

    A logical message outside of any transaction stands as one of its own, with xid 0; its name is
    its record's last byte, which no commit record can begin at.

    Attributes:
        base: the position before the batch.
        ends: int64 per transaction, where its commit record ends; 0 while it is open.
        commits: int64 per transaction, where its commit record begins; names it on every replay.
        xids: int64 per transaction, as the server numbers them; 0 for a message on its own.
        times_ms: int64 per transaction, its commit in ms since epoch.
        reached: how far the server had read when nothing was left to send; 0 when unknown.
    """

    base: WalPosition
    ends: Any
    commits: Any
    xids: Any
    times_ms: Any
    reached: int = 0

    def __len__(self) -> int:
        return len(self.ends)

    def after(self, tx: int) -> Position:
        """Return where reading may resume after transaction ``tx``, never inside one."""
        return self._place(self.ends[: tx + 1], 0).as_json()

    @property
    def end(self) -> Position:
        """Where reading may resume after the last complete transaction."""
        return self.end_position.as_json()

    @property
    def end_position(self) -> WalPosition:
        """``end``, to calculate with."""
        return self._place(self.ends, self.reached)

    def packed(self) -> PackedPositions:
        """Return them as they can be kept."""
        columns = (self.ends, self.commits, self.xids, self.times_ms)
        numbers = np.stack([np.asarray(column, np.int64) for column in columns], axis=1)
        return PackedPositions({"base": self.base.as_json(), "reached": self.reached}, numbers)

    @classmethod
    def unpacked(cls, packed: PackedPositions) -> "WalTxPositions":
        """Return them as they were before ``packed``."""
        base = WalPosition.from_json(packed.header["base"])
        ends, commits, xids, times_ms = np.ascontiguousarray(packed.numbers.reshape(-1, 4).T)
        return cls(base, ends, commits, xids, times_ms, int(packed.header["reached"]))

    def _place(self, ends: Any, reached: int) -> WalPosition:
        last = int(np.max(ends, initial=0))
        lsn = max(self.base.lsn, last, reached)
        return WalPosition(lsn, self.base.system_id, self.base.timeline)


def visible_in(cut: Position, positions: WalTxPositions) -> Any:
    """Return which transactions a view with this cut contained, a bool array by ordinal.

    A promoted server goes on with numbers that its predecessor may have used for something else,
    so a cut counts on its own timeline only.

    Args:
        cut: with ``snapshot``, as ``pg_current_snapshot`` writes it: ``xmin:xmax:xip,…``; of a
            standby with ``replayed``, up to where it had replayed the log before the view.
        positions: whose ``xids`` are the last 32 bits of what the snapshot names.
    """
    base, text = positions.base, str(cut.get("snapshot") or "")
    same = WalPosition.from_json(cut)
    known = (same.system_id, same.timeline) == (base.system_id, base.timeline)
    if known and "replayed" in cut:
        ends = np.asarray(positions.ends, np.int64)
        behind_it = ends <= parse_lsn(str(cut["replayed"]))
        return (np.asarray(positions.xids, np.int64) > 0) & (ends > 0) & behind_it
    if not text or not known:
        return np.zeros(len(positions.xids), np.bool_)
    _, upper, active = text.split(":")
    xmax, xids = int(upper), np.asarray(positions.xids, np.int64)
    # The nearest number to xmax that ends in these bits.
    behind = ((xids - xmax + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)
    running = np.array([int(xid) - xmax for xid in active.split(",") if xid], np.int64)
    return (xids > 0) & (behind < 0) & ~np.isin(behind, running)


def is_behind(position: Position, cut: Position) -> bool:
    """Return whether the log up to a position holds everything that a view contained.

    The end of the log that a view saw may be the first byte behind a page's header, where no record
    ends: what was logged before ends where the page begins.
    """
    end = parse_lsn(str(cut["lsn"]))
    header = end % _PAGE
    lsn = end - header if header in _PAGE_HEADERS else end
    return compare(position, {**cut, "lsn": lsn_text(lsn)}) >= 0


def common_cut(cuts: Sequence[Position]) -> Position | None:
    """Return what several views of one server contained; None where that is not known."""
    texts = [str(cut.get("snapshot") or "") for cut in cuts]
    servers = {(cut.get("system_id"), cut.get("timeline")) for cut in cuts}
    if len(servers) == 1 and all("replayed" in cut for cut in cuts):
        return min(cuts, key=lambda cut: parse_lsn(str(cut["replayed"])))
    if not all(texts) or len(servers) != 1:
        return None
    # Whoever has a number below a view's xmin had ended when it opened.
    xmin = min(int(text.partition(":")[0]) for text in texts)
    return {**cuts[0], "snapshot": f"{xmin}:{xmin}:"}
