"""An encoding that needs something which is away as long as a test likes."""

import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import orjson
import pyarrow as pa

from airflow_provider_deltaforge.encodings.contract import Encoded, Encoding, UnaskedError
from airflow_provider_deltaforge.events.message import Rejection
from airflow_provider_deltaforge.plugins import ENCODINGS
from tests.waiting import PATIENCE_S


@dataclass
class Gate:
    """What the encoders of one sink meet, and what they were asked.

    Attributes:
        error: raised by every attempt.
        errors: or by the next ones, one each; None lets one through.
        error_behind: ``error`` concerns only batches that end behind this transaction.
        slow: a server that an encoding asks once, and that answers when this is set.
        refuses: rows that cannot be encoded.
        asked: the last transaction of each batch, and in which thread.
        made: the first and last transaction of those that were encoded.
    """

    error: Exception | None = None
    errors: list[Exception | None] = field(default_factory=list)
    error_behind: int = 0
    slow: threading.Event | None = None
    refuses: Callable[[dict], bool] | None = None
    asked: list[tuple[int, str]] = field(default_factory=list)
    made: list[tuple[int, int]] = field(default_factory=list)

    def encode(self, bodies):
        if not len(bodies.values):
            return Encoded(bodies.values)
        first, last = (_row(bodies.values[at].as_py()) for at in (0, -1))
        self.asked.append((last["tx"], threading.current_thread().name))
        error = self.error if last["tx"] > self.error_behind else None
        if self.errors:
            error = self.errors.pop(0)
        if error is not None:
            raise error
        if self.slow is not None:
            if not bodies.asks:
                raise UnaskedError("not known yet")
            assert self.slow.wait(PATIENCE_S)
            self.slow = None
        self.made.append((first["tx"], last["tx"]))
        if self.refuses is None:
            return Encoded(bodies.values)
        texts = bodies.values.to_pylist()
        given = [None if self.refuses(_row(text)) else text for text in texts]
        refused = [at for at, text in enumerate(given) if text is None]
        told = [Rejection(at, "serialization", "not this one") for at in refused]
        return Encoded(pa.array(given, pa.binary()), told)

    def in_order(self):
        """Say whether nothing was encoded in front of what was still to be."""
        furthest = 0
        for first, last in self.made:
            if first > furthest + 1:
                return False
            furthest = max(furthest, last)
        return True

    def close(self):
        pass


def _row(text):
    return orjson.loads(text)["after"]


class Gated(Encoding):
    def open(self, wanted):
        return GATES[wanted.sink]


GATES: defaultdict[str, Gate] = defaultdict(Gate)
"""By sink."""
SINK = "encoding: {type: gated}, "


def gates(monkeypatch):
    """Let documents name the encoding; return the gates of their sinks, all open."""
    monkeypatch.setitem(ENCODINGS.shipped, "gated", f"{__name__}:Gated")
    GATES.clear()
    return GATES
