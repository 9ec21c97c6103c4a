"""Gives a sink that holds our position itself each event once, whatever it is given again."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.engine.render import take
from airflow_provider_deltaforge.errors import FatalError, FencedError
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.events.message import Messages, Rejection
from airflow_provider_deltaforge.sinks.contract import Cursor, ExactlyOnceWriter
from airflow_provider_deltaforge.storage.checkpoints import Stand

_SEARCHED_MOST = 1_000_000


class Once:
    """Keeps the cursor of one connection. Used by the sink's thread.

    Args:
        sink_id: the sink, for messages to people.
        writer: its connection.
    """

    def __init__(self, sink_id: str, writer: ExactlyOnceWriter) -> None:
        self._id = sink_id
        self._writer = writer
        self._cursor: Cursor | None = None
        self._sought: bytes | None = None
        self._searched = 0
        self.held: tuple[str, ...] | None = None
        """What the sink may tell while it lacks nothing of what it was given; None at first."""

    def write(
        self, messages: Messages, at: Position | None, stand: Stand | None
    ) -> Sequence[Rejection]:
        """Write what the sink lacks; if it refuses anything, nothing of it is durable.

        Args:
            messages: of one batch.
            at: the batch's end; None inside a transaction.
            stand: the sink's checkpoint.

        Raises:
            FencedError: the sink holds something else than the checkpoint says, or another writer
                has taken over: both have to be compared anew.
        """
        cursor = self._at(stand)
        lacking, found = self._lacking(messages)
        if self._sought is not None and not found:
            self._searched += len(messages)
            self._check_search(at)
            return ()
        after = cursor if at is None else Cursor(at)
        if len(lacking):
            last = lacking.event_ids[-1].as_py()
            after = Cursor(cursor.position, last) if at is None else after
            refused = self._writer.write_once(lacking, cursor, after)
            if refused:
                return refused
            self.held = _texts(after, replace(cursor, event_id=last))
        elif self._sought is not None:
            self.held = _texts(cursor)
        self._cursor, self._sought = after, None
        return ()

    def _at(self, stand: Stand | None) -> Cursor:
        """Return where the sink stands: a checkpoint also moves over what holds nothing for it."""
        if stand is None:
            raise FencedError(f"sink {self._id}: it has no checkpoint yet")
        if self._cursor is None:
            return self._take_over(stand)
        if self._cursor.event_id is None:
            self._cursor = Cursor(stand.position)
        return self._cursor

    def _take_over(self, stand: Stand) -> Cursor:
        """Shut former writers out, and see that the sink stands where its checkpoint does."""
        told = self._writer.recover()
        if stand.held is not None and not tells(told, stand.held):
            raise FencedError(f"sink {self._id}: it holds something else than its checkpoint says")
        self.held = _texts(told)
        self._cursor = Cursor(stand.position)
        if told is not None and told.event_id is not None and told.position == stand.position:
            self._cursor, self._sought = told, told.event_id
            self.held = ()  # Moved now, the checkpoint would say that it lacks nothing.
        return self._cursor

    def _lacking(self, messages: Messages) -> tuple[Messages, bool]:
        """Return what lies behind the event that the sink holds last, and whether it is there."""
        if self._sought is None:
            return messages, True
        same = pc.equal(messages.event_ids, pa.scalar(self._sought, messages.event_ids.type))
        places = np.flatnonzero(np.asarray(same))
        if not len(places):
            return messages, False
        rest = np.arange(int(places[-1]) + 1, len(messages), dtype=np.int32)
        return take(messages, pa.array(rest)), True

    def _check_search(self, at: Position | None) -> None:
        if at is not None and self._searched > _SEARCHED_MOST and self._cursor is not None:
            raise FatalError(
                f"sink {self._id}: it holds changes behind {dict(self._cursor.position)} up to "
                "one that the log does not show any more, so nobody can say which it lacks. Undo "
                "what was changed of the document since, or remove exactly_once and run it again"
            )


def tells(told: Cursor | None, held: Sequence[str]) -> bool:
    """Say whether what a sink tells is what it may tell."""
    if told is None:
        return not held
    return any(Cursor.from_text(text, "a checkpoint") == told for text in held)


def _texts(*cursors: Cursor | None) -> tuple[str, ...]:
    return tuple(one.as_text().decode() for one in cursors if one is not None)
