"""Gives a sink that holds our position itself each event once, whatever it is given again."""

import logging
from collections.abc import Sequence
from dataclasses import replace

from airflow_provider_deltaforge.engine.deliver.held_event import LogRows, rest_behind
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
from airflow_provider_deltaforge.sources.contract import Source
from airflow_provider_deltaforge.storage.records.checkpoints import StoredPosition

_SEARCHED_MOST = 1_000_000
"""No batch is as long, however the document limits them: with a backlog, the search ends here."""

_log = logging.getLogger(__name__)


class ExactlyOnceGuard:
    """Keeps the cursor of one connection. Used by the sink's thread.

    Args:
        sink_id: the sink, for messages to people.
        writer: its connection.
        owner: of the positions that are written.
        source: whose log is written; None where that is not known.
    """

    def __init__(
        self,
        sink_id: str,
        writer: ExactlyOnceWriter,
        owner: PositionOwner,
        source: Source | None = None,
    ) -> None:
        self._id = sink_id
        self._writer = writer
        self._owner, self._source = owner, source
        self._adopted: SinkPosition | None = None
        self._cursor: SinkPosition | None = None
        self._sought: bytes | None = None
        self._searched = 0
        self._log_end: Position | None = None
        """Where the log ended as the search began: the event lies in front of that."""
        self._again = False
        self._held: tuple[str, ...] | None = None

    @property
    def has_begun(self) -> bool:
        """Return whether the sink has been asked for its position."""
        return self._cursor is not None

    @property
    def held(self) -> tuple[str, ...] | None:
        """Return what the sink may tell while it lacks nothing; None at first."""
        return self._held

    def is_searching(self, stand: StoredPosition) -> bool:
        """Return whether the event is still to come that the sink holds last.

        Args:
            stand: the sink's checkpoint.
        """
        cursor = self._cursor
        if self._sought is not None or cursor is None or not self._again:
            return self._sought is not None
        return cursor.event_id is not None and cursor.position == stand.position

    def read_again(self) -> None:
        """Expect what lies behind the checkpoint once more: the log is read from there again."""
        self._again = True

    def write(
        self,
        messages: Messages,
        at: Position | None,
        stand: StoredPosition | None,
        log: LogRows | None = None,
    ) -> Sequence[Rejection]:
        """Write what the sink lacks; if it refuses anything, the rest has to be given again.

        Args:
            messages: of one batch.
            at: the batch's end; None inside a transaction.
            stand: the sink's checkpoint. It is not to move while the event is still to come that
                the sink holds last; see ``is_searching``.
            log: what the messages were made of.

        Raises:
            FencedError: the sink holds something else than the checkpoint says, or another writer
                has taken over: both have to be compared anew.
            FatalError: the log does not show the event any more that the sink holds last.
        """
        cursor = self._at(stand)
        lacking = self._lacking(messages, log)
        if lacking is None:
            self._check_search(len(messages) if log is None else len(log), at, cursor)
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
            self._cursor = self._owner.at(stand.position)
        elif again and self._cursor.event_id is not None:
            self._seek(self._cursor.event_id)
        return self._cursor

    def _is_stored(self, stand: StoredPosition) -> bool:
        """Return whether a checkpoint covers everything that was written."""
        if stand.held is None:
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
            self._seek(known.event_id)
            self._cursor = replace(self._cursor, event_id=known.event_id)
        return self._cursor

    def _seek(self, event_id: bytes | None) -> None:
        self._sought, self._searched, self._log_end = event_id, 0, None

    def _lacking(self, messages: Messages, log: LogRows | None) -> Messages | None:
        """Return what lies behind the event that the sink holds last; None: it is still to come."""
        return messages if self._sought is None else rest_behind(self._sought, messages, log)

    def _check_search(self, events: int, at: Position | None, cursor: SinkPosition) -> None:
        """Fail where the event must have come: the log had it before the sink was asked.

        Args:
            events: of the batch that does not hold it.
            at: the batch's end; None inside a transaction.
            cursor: what the sink holds.
        """
        if at is not None and self._source is not None and self._log_end is None:
            self._log_end = self._source.head()
            _log.warning(
                "sink %s holds a part of what follows %s; nothing is written to it before the log "
                "has shown the last event of that part",
                self._id,
                dict(cursor.position),
            )
        self._searched += events
        if at is None or not (self._searched > _SEARCHED_MOST or self._is_read(at)):
            return
        raise FatalError(
            f"sink {self._id}: it holds changes behind {dict(cursor.position)} up to one that the "
            f"log, read up to {dict(at)}, does not show any more, so nobody can say which it "
            "lacks. Nothing was written, and its checkpoint stands where it was. Undo what was "
            "changed of the document since (tables, processors), and it goes on with nothing lost "
            "or repeated; or remove exactly_once: it then gets once more what it holds behind "
            "its checkpoint"
        )

    def _is_read(self, at: Position) -> bool:
        """Return whether the log was read to where it ended when the search began."""
        if self._source is None or self._log_end is None:
            return False
        return self._source.covers(at, self._log_end)
