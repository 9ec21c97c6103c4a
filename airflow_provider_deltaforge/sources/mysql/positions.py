"""Positions of the log: what they hold, how they compare, and those inside a batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from airflow_provider_deltaforge.errors import PositionLostError
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.sources.mysql.gtid import GtidPos, GtidSet, spans_of
from airflow_provider_deltaforge.sources.shared.packed_positions import PackedPositions

# Columns of a table of transactions (int64): origin (its ordinal, -1 without GTID), number in it,
# commit time in ms, offset where it starts, offset after its commit (-1 while open), and the id of
# the server that wrote it.
TX_ORIGIN, TX_NUMBER, TX_TIME, TX_START, TX_STOP, TX_SERVER = range(6)
TX_COLUMNS = 6


@dataclass(frozen=True)
class LogPosition:
    """A place between two transactions.

    Attributes:
        file: binlog file; empty when only GTIDs are known.
        pos: offset in it.
        gtids: everything executed before; None when the server writes no GTIDs.
        server_uuid: whose file and offset they are.
    """

    file: str
    pos: int
    gtids: GtidSet | GtidPos | None
    server_uuid: str

    def as_json(self) -> Position:
        """Return the position as it is stored."""
        out: dict[str, Any] = {"file": self.file, "pos": self.pos}
        if isinstance(self.gtids, GtidSet):
            out["gtid_set"] = str(self.gtids)
        elif self.gtids is not None:
            out["gtid_pos"] = str(self.gtids)
        out["server_uuid"] = self.server_uuid
        return out

    @classmethod
    def from_json(cls, position: Position) -> "LogPosition":
        """Read a stored position."""
        gtids: GtidSet | GtidPos | None = None
        if position.get("gtid_set") is not None:
            gtids = GtidSet.parse(position["gtid_set"])
        elif position.get("gtid_pos") is not None:
            gtids = GtidPos.parse(position["gtid_pos"])
        file = str(position.get("file") or "")
        return cls(file, int(position.get("pos") or 4), gtids, str(position.get("server_uuid", "")))


def compare(left: Position, right: Position) -> int:
    """Return -1, 0 or 1 as ``left`` lies before, at or after ``right``.

    Raises:
        PositionLostError: the two lie on histories that cannot be ordered.
    """
    a, b = LogPosition.from_json(left), LogPosition.from_json(right)
    for kind in (GtidSet, GtidPos):
        if isinstance(a.gtids, kind) and isinstance(b.gtids, kind):
            before, after = a.gtids <= b.gtids, b.gtids <= a.gtids  # type: ignore[operator]
            if before or after:
                return after - before if before != after else 0
            raise PositionLostError(
                f"neither of the positions {a.gtids} and {b.gtids} contains the other: the "
                "histories diverged; take a new snapshot"
            )
    if a.server_uuid != b.server_uuid and a.server_uuid and b.server_uuid:
        raise PositionLostError(
            f"positions of two servers ({a.server_uuid}, {b.server_uuid}) cannot be ordered "
            "without GTIDs; take a new snapshot"
        )
    place_a, place_b = (file_number(a.file), a.pos), (file_number(b.file), b.pos)
    return (place_a > place_b) - (place_a < place_b)


def file_number(file: str) -> int:
    """Return the number at the end of a binlog's name; they outgrow six digits."""
    suffix = file.rpartition(".")[2]
    return int(suffix) if suffix.isdigit() else 0


@dataclass(frozen=True)
class BinlogTxPositions:
    """The positions after each of a batch's transactions, computed on demand.

    Attributes:
        base: the position before the batch.
        transactions: int64 (transactions, TX_COLUMNS); only complete ones count.
        origins: of MySQL GTIDs ``uuid[:tag]``, of MariaDB's ``domain-server``.
    """

    base: LogPosition
    file: str
    transactions: Any
    origins: tuple[str, ...]
    _known: dict[int, LogPosition] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """What was computed already, by the number of transactions."""

    def after(self, tx: int) -> Position:
        """Return where reading may resume after transaction ``tx``, never inside one."""
        return self.log_position(tx + 1).as_json()

    def log_position(self, count: int) -> LogPosition:
        """Return the position after the first ``count`` transactions, open ones left out."""
        known = self._known.get(count)
        if known is None:
            known = self._known[count] = self._position_after(count)
        return known

    def _position_after(self, count: int) -> LogPosition:
        done = self.transactions[:count]
        done = done[done[:, TX_STOP] >= 0]
        if not len(done):
            return self.base
        gtids = advanced(self.base.gtids, done, self.origins)
        return LogPosition(self.file, int(done[-1, TX_STOP]), gtids, self.base.server_uuid)

    def packed(self) -> PackedPositions:
        """Return them as they can be kept."""
        header = {"base": self.base.as_json(), "file": self.file, "origins": list(self.origins)}
        return PackedPositions(header, self.transactions)

    @classmethod
    def unpacked(cls, packed: PackedPositions) -> "BinlogTxPositions":
        """Return them as they were before ``packed``."""
        header = packed.header
        transactions = packed.numbers.reshape(-1, TX_COLUMNS)
        base = LogPosition.from_json(header["base"])
        return cls(base, header["file"], transactions, tuple(header["origins"]))


def advanced(
    gtids: GtidSet | GtidPos | None, transactions: Any, origins: tuple[str, ...]
) -> GtidSet | GtidPos | None:
    """Return the set with finished transactions added."""
    origin_of = transactions[:, TX_ORIGIN]
    first = int(origin_of[0])
    is_only = bool((origin_of == first).all())  # As on most servers.
    for origin in [first] if is_only else np.unique(origin_of).tolist():
        if origin < 0:
            continue
        numbers = transactions[origin_of == origin, TX_NUMBER]
        if isinstance(gtids, GtidPos):
            continue
        if isinstance(gtids, GtidSet):
            low, high = int(numbers.min()), int(numbers.max())
            whole = high - low + 1 == len(numbers)
            for span in [(low, high)] if whole else spans_of(iter(numbers.tolist())):
                gtids = gtids.adding(origins[origin], *span)
    if isinstance(gtids, GtidPos):
        last: Mapping[str, tuple[int, int]] = {
            origins[o].split("-")[0]: (o, n)
            for o, n in transactions[:, [TX_ORIGIN, TX_NUMBER]].tolist()
            if o >= 0
        }
        for domain, (origin, number) in last.items():
            gtids = gtids.at(int(domain), int(origins[origin].split("-")[1]), number)
    return gtids


def visible_in(cut: LogPosition, positions: BinlogTxPositions) -> Any:
    """Return which transactions a view with this cut contained, a bool array by ordinal.

    A MySQL view contains what its GTID set names, up to the first transaction of the log that is
    not in the set: with ``binlog_order_commits=OFF`` a later one may be named before it, and must
    not be left out while an earlier change of the same row is delivered. A MariaDB view, and one of
    a server without GTIDs, contains what begins before its place in the log of that very server: a
    place lies between two transactions, and the end of one that is still open is not known.
    """
    transactions = positions.transactions
    contained = np.zeros(len(transactions), np.bool_)
    if isinstance(cut.gtids, GtidSet):
        before = positions.base.gtids
        if not isinstance(before, GtidSet) or not before <= cut.gtids:
            return contained
        for ordinal, name in enumerate(positions.origins):
            if name in cut.gtids.members:
                spans = np.array(cut.gtids.members[name], np.int64)
                numbers = transactions[:, TX_NUMBER]
                at = np.searchsorted(spans[:, 0], numbers, "right") - 1
                within = (at >= 0) & (numbers <= spans[at, 1])
                contained |= within & (transactions[:, TX_ORIGIN] == ordinal)
        return np.logical_and.accumulate(contained)
    if not cut.server_uuid or cut.server_uuid != positions.base.server_uuid:
        return contained
    if not cut.file or not positions.file:
        return contained
    file, cut_file = file_number(positions.file), file_number(cut.file)
    if file != cut_file:
        return np.full(len(transactions), file < cut_file)
    return transactions[:, TX_START] < cut.pos


def is_behind(position: Position, cut: Position) -> bool:
    """Return whether the log up to a position holds everything that a view contained.

    Where the cut may be a part of that, it has the log's end (``upto``) and what was executed
    (``executed``) when the view was there.
    """
    upto = cut.get("upto")
    if upto is None:
        return compare(position, cut) >= 0
    if cut["server_uuid"] != position["server_uuid"] and "executed" in cut:
        return compare(position, {**cut, "gtid_set": cut["executed"]}) >= 0
    end = {"file": upto[0], "pos": upto[1], "server_uuid": cut["server_uuid"]}
    return compare({**position, "gtid_set": None}, end) >= 0


def common_cut(cuts: Sequence[LogPosition]) -> Position | None:
    """Return what several views of one server contained; None of views of several servers."""
    if len({cut.server_uuid for cut in cuts}) != 1:
        return None
    first = min(cuts, key=lambda cut: (file_number(cut.file), cut.pos))
    if not isinstance(first.gtids, GtidSet):
        return first.as_json()
    gtids = first.gtids
    for cut in cuts:
        if not isinstance(cut.gtids, GtidSet):
            return None
        gtids = gtids & cut.gtids
    return replace(first, gtids=gtids).as_json()
