"""The bytes that were received and not handed out yet."""

from typing import Any

import numpy as np

CHUNK_BYTES = 4 << 20
"""A chunk is cut when it has this many bytes of log."""

_ROOM = 1 << 16


class Received:
    """One array: frames that were looked at, up to ``at``, and what came behind them.

    Attributes:
        raw: uint8.
        at: how far the scanner has come; a whole frame or none begins here.
        end: behind the last byte received.
    """

    def __init__(self) -> None:
        self.raw: Any = np.empty(CHUNK_BYTES, np.uint8)
        self.at = 0
        self.end = 0

    @property
    def full(self) -> bool:
        """Whether it is time to hand something out, or to grow."""
        return len(self.raw) - self.end < _ROOM

    def room(self) -> memoryview:
        """Return where the next bytes go; a frame larger than the array gets a larger one."""
        if self.full:
            grown = np.empty(2 * len(self.raw), np.uint8)
            grown[: self.end] = self.raw[: self.end]
            self.raw = grown
        return memoryview(self.raw.data)[self.end :]

    def frame(self) -> bytes:
        """Return the complete frame that begins at ``at``."""
        size = 1 + int.from_bytes(self.raw[self.at + 1 : self.at + 5].tobytes(), "big")
        return bytes(self.raw[self.at : self.at + size].tobytes())

    def clear(self) -> None:
        """Forget everything."""
        self.at = self.end = 0

    def give(self, size: int) -> tuple[Any, bool]:
        """Return the first ``size`` bytes for good, and whether the array itself goes with them.

        Whoever takes an array away must ``keep`` what is still needed, before anything else.
        """
        whole = size >= CHUNK_BYTES // 4
        return (self.raw[:size] if whole else self.raw[:size].copy()), whole

    def keep(self, piece: tuple[int, int], tail: int, *, anew: bool) -> None:
        """Put a piece and everything from ``tail`` on at the front.

        Args:
            piece: where a row's bytes begin and end; both the same for none.
            tail: what is kept from here on; not behind ``at``.
            anew: in another array, because this one was given away.
        """
        size, left = piece[1] - piece[0], self.end - tail
        target = np.empty(max(CHUNK_BYTES, 2 * (size + left)), np.uint8) if anew else self.raw
        target[:size] = self.raw[piece[0] : piece[1]]
        target[size : size + left] = self.raw[tail : self.end]
        self.at, self.end = size + self.at - tail, size + left
        self.raw = target
