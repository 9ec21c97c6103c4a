"""Gives a sink that holds our position itself each event once, whatever it is given again."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.engine.deliver.held_positions import (
    PositionOwner,
    as_texts,
    known_as,
    lies_behind,
    tells,
)
from airflow_provider_deltaforge.errors import FatalError, FencedError
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.events.message import Messages, Rejection
from airflow_provider_deltaforge.sinks.position_contract import ExactlyOnceWriter, SinkPosition
from airflow_provider_deltaforge.storage.records.checkpoints import StoredPosition

_SEARCHED_MOST = 1_000_000


class ExactlyOnceGuard:
    """Keeps the cursor of one connection. Used by the sink's thread.

    Args:
        sink_id: the sink, for messages to people.
        writer: its connection.
        owner: of the positions that are written.
    """

    def __init__(self, sink_id: str, writer: ExactlyOnceWriter, owner: PositionOwner) -> None:
        self._id = sink_id
        self._writer = writer
        self._owner = owner
        self._adopted: SinkPosition | None = None
        self._cursor: SinkPosition | None = None
        self._sought: bytes | None = None
        self._searched = 0
        self._again = False
        self._held: tuple[str, ...] | None = None

    @property
    def is_searching(self) -> bool:
        """Return whether the event is still to come that the sink holds last."""
        return self._sought is not None

    def holds(self, position: Position) -> tuple[str, ...] | None:
        """Return what the sink may tell while it lacks nothing up to a position; None at first."""
        if self._sought is not None:
            # That event lies behind it still.
            return as_texts(self._owner.at(position, self._sought), self._adopted)
        return self._held

    def read_again(self) -> None:
        """Expect what lies behind the checkpoint once more: the log is read from there again."""
        self._again = True

    def write(
        self, messages: Messages, at: Position | None, stand: StoredPosition | None
    ) -> Sequence[Rejection]:
        """Write what the sink lacks; if it refuses anything, the rest has to be given again.

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
        after = cursor if at is None else self._owner.at(at)
        if len(lacking):
            last = lacking.event_ids[-1].as_py()
            after = replace(cursor, event_id=last) if at is None else after
            refused = self._writer.write_once(lacking, cursor, after)
            if refused:
                return refused
            self._held = as_texts(after, replace(cursor, event_id=last))
            self._adopted = None
        elif self._sought is not None:
            self._held = as_texts(cursor, self._adopted)
        self._cursor, self._sought = after, None
        return ()

    def _at(self, stand: StoredPosition | None) -> SinkPosition:
        """Return where the sink stands: a checkpoint also moves over what holds nothing for it."""
        if stand is None:
            raise FencedError(f"sink {self._id}: it has no checkpoint yet")
        if self._cursor is None:
            return self._take_over(stand)
        again, self._again = self._again, False
        if self._cursor.position != stand.position:
            if again and not self._is_stored(stand):
                raise FencedError(f"sink {self._id}: it holds more than its checkpoint says")
            self._cursor = self._owner.at(stand.position, self._sought)
        elif again and self._cursor.event_id is not None:
            self._sought, self._searched = self._cursor.event_id, 0
        return self._cursor

    def _is_stored(self, stand: StoredPosition) -> bool:
        """Return whether a checkpoint covers everything that was written."""
        if self._sought is not None or stand.held is None:
            return True
        held = self._held or ()
        return not (held or stand.held) or not set(held).isdisjoint(stand.held)

    def _take_over(self, stand: StoredPosition) -> SinkPosition:
        """Shut former writers out, and see that the sink stands where its checkpoint does."""
        found = known = self._writer.recover()
        is_foreign = found is not None and self._owner.is_of_another_store(found)
        if stand.held is not None:
            known = None if found is None else known_as(found, stand.held)
        if not tells(found, stand.held) if stand.held is not None else is_foreign:
            raise FencedError(f"sink {self._id}: it holds something else than its checkpoint says")
        self._held = as_texts(found)
        self._adopted = found if is_foreign else None
        self._cursor = self._owner.at(stand.position)
        if known is not None and lies_behind(known, stand, self._owner):
            self._sought = known.event_id
            self._cursor = replace(self._cursor, event_id=self._sought)
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
        return messages.take(pa.array(rest)), True

    def _check_search(self, at: Position | None) -> None:
        if at is not None and self._searched > _SEARCHED_MOST and self._cursor is not None:
            raise FatalError(
                f"sink {self._id}: it holds changes behind {dict(self._cursor.position)} up to "
                "one that the log does not show any more, so nobody can say which it lacks. Undo "
                "what was changed of the document since, or remove exactly_once and run it again"
            )
