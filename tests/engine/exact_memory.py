"""A sink in this process that holds the position itself, and the faults that such sinks have."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.errors import FencedError, RetryableError
from airflow_provider_deltaforge.events.message import Rejection
from airflow_provider_deltaforge.plugins import SINKS
from airflow_provider_deltaforge.sinks.contract import Sink
from airflow_provider_deltaforge.sinks.position_contract import SinkPosition
from tests.engine.in_process import InProcess


@dataclass
class Held:
    """What a sink holds, and how it should behave.

    Attributes:
        in_headers: the position stands in each message, so the last one tells the cursor.
        fail_after: the next writes stop after so many messages, as if the place were away; None
            does not.
        refuses: values that are refused.
        loses_both: a position that is gone has taken the messages with it.
        untold: why it does not tell its position, if it does not.
        before_plain: called before each write beside the position.
    """

    values: list[tuple[bytes, bytes]] = field(default_factory=list)
    cursors: list[SinkPosition] = field(default_factory=list)
    owner: object = None
    takeovers: int = 0
    in_headers: bool = False
    fail_after: list[int | None] = field(default_factory=list)
    refuses: Callable[[bytes], bool] = lambda _: False
    loses_both: bool = False
    untold: Exception | None = None
    before_plain: Callable[[], None] = lambda: None

    @property
    def ids(self):
        return [event_id for event_id, _ in self.values]

    @property
    def cursor(self):
        return self.cursors[-1] if self.cursors else None

    def lose(self, writes):
        """Forget the last messages, each with its cursor."""
        del self.values[len(self.values) - writes :]
        del self.cursors[len(self.cursors) - writes :]


HELD: defaultdict[str, Held] = defaultdict(Held)


class ExactSink(Sink):
    destination_field: ClassVar[str] = "topic"

    id: str = "out"
    log: str
    topic: str = "t"
    exactly_once: bool = True

    @property
    def holds_position(self):
        return self.exactly_once

    def without_position(self):
        return self.model_copy(update={"exactly_once": False})

    def open(self, pipeline):
        held = HELD[self.log]
        if not self.exactly_once:
            return _Plain(held)
        return _Together(held) if held.loses_both else _Writer(held)


class _Writer:
    def __init__(self, held):
        self._held = held

    def recover(self):
        if self._held.untold is not None:
            raise self._held.untold
        self._held.owner = self
        self._held.takeovers += 1
        return self._held.cursor

    def write(self, messages):
        raise AssertionError("the position would be lost")

    def write_once(self, messages, before, after):
        held = self._held
        if held.owner is not self:
            raise FencedError("another has taken over")
        pairs = list(zip(messages.event_ids.to_pylist(), messages.values.to_pylist(), strict=True))
        rows = messages.event_rows.to_pylist()
        refused = [row for row, (_, text) in zip(rows, pairs, strict=True) if held.refuses(text)]
        if refused:
            return [Rejection(row, "refused", "not this one") for row in refused]
        if held.in_headers:
            # What came through before an answer was lost is not sent again.
            pairs = [pair for pair in pairs if pair[0] not in set(held.ids[-1000:])]
        most = held.fail_after.pop(0) if held.fail_after else None
        if most is not None and not held.in_headers:
            raise RetryableError("away")
        taken = pairs[:most]
        held.values += taken
        held.cursors += [
            replace(before, event_id=event_id) if held.in_headers else after
            for event_id, _ in taken
        ]
        if most is not None:
            raise RetryableError("away")
        return []

    def close(self):
        pass


class _Together(_Writer):
    has_expired = False


class _Plain:
    """Writes what has no position in the log, beside the position."""

    def __init__(self, held):
        self._held = held

    def write(self, messages):
        ids, texts = messages.event_ids.to_pylist(), messages.values.to_pylist()
        self._held.before_plain()
        self._held.values += zip(ids, texts, strict=True)
        return []

    def close(self):
        pass


def exact_pipeline(monkeypatch, **settings):
    """Apply a pipeline whose sinks are of this kind."""
    monkeypatch.setitem(SINKS.shipped, "exact", f"{__name__}:ExactSink")
    pipeline = InProcess(**settings)
    pipeline.document = pipeline.document.replace("type: memory", "type: exact")
    pipelines.apply(pipeline.store, pipeline.document)
    pipeline.want("running")
    return pipeline


def change(pipeline, former, later):
    """Change the document of a pipeline that does not run."""
    assert former in pipeline.document
    pipeline.document = pipeline.document.replace(former, later)
    pipelines.apply(pipeline.store, pipeline.document)
    pipeline.want("running")


def held(pipeline, sink="out"):
    return HELD[f"{pipeline.name}-{sink}"]
