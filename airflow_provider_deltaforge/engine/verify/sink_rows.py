"""What sinks hold of each row: from their messages, or from a reader that a document names."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import orjson
import pyarrow as pa

from airflow_provider_deltaforge.columns.row_hash_kernel import row_checksums
from airflow_provider_deltaforge.engine.verify.arrow_rows import row_images
from airflow_provider_deltaforge.engine.verify.message_rows import (
    MessageRows,
    VerifiedTable,
    row_ids,
)
from airflow_provider_deltaforge.engine.verify.row_states import (
    ABSENT,
    LATE,
    MARKED,
    StateFiles,
    latest,
    states,
)
from airflow_provider_deltaforge.errors import DeltaForgeError, FatalError, SpecError
from airflow_provider_deltaforge.plugins import load_object
from airflow_provider_deltaforge.sinks.contract import Sink
from airflow_provider_deltaforge.sinks.reader_contract import SinkReader, VerifySettings

RowKey = tuple[int, bytes]
"""A table's number, and a row's key in events."""


@dataclass
class HeldRow:
    """One row as a sink holds it.

    Attributes:
        content: its checksum, without what ``unchanged`` names.
        is_there: it is not deleted.
        is_late: it changed since the reading before the source's view.
        unchanged: a JSON list of columns that the log did not repeat; None: it has all of them.
        place: see ``STATES``.
        time_ms: see ``STATES``.
        order: see ``STATES``.
    """

    content: int
    is_there: bool
    is_late: bool
    unchanged: bytes | None = None
    place: int = 0
    time_ms: int = 0
    order: int = -1


class SinkRows(Protocol):
    """One sink's rows. Used by one thread."""

    files: StateFiles
    """What was read at first."""
    steady_looks: int
    """So many looks in a row must show the same difference before a row counts as different."""

    @property
    def notes(self) -> list[str]:
        """Return what people should know of what was read."""

    @property
    def messages(self) -> int:
        """Return how many messages, or rows, were read."""

    def read(self, topics: Mapping[str, Collection[int]], *, late: bool) -> None:
        """Add to ``files`` what was not read yet.

        Args:
            topics: by destination, the tables whose rows it may hold.
            late: it is the second reading: what comes now changed since the first.
        """

    def look(self, rows: dict[RowKey, HeldRow], *, late: bool) -> None:
        """Bring chosen rows up to date.

        Args:
            rows: changed in place.
            late: behind the source's view; before it, what was late is settled.
        """

    def latest(self, bucket: pa.Table) -> pa.Table:
        """Return the last state of each row of a bucket."""

    def close(self) -> None:
        """Release the connection."""


@dataclass
class MessageSink:
    """A sink whose messages are read back."""

    reader: SinkReader
    rows: MessageRows
    files: StateFiles
    check: Callable[[], None]
    """Raises when the verification is to end."""
    steady_looks: int = 1
    _topics: tuple[str, ...] = ()

    @property
    def notes(self) -> list[str]:
        """Return what people should know of what was read."""
        unreadable = self.rows.unreadable
        own = [f"{unreadable} messages name no row of a table, and were passed over"]
        return [*self.reader.notes, *(own if unreadable else [])]

    @property
    def messages(self) -> int:
        """Return how many messages were read."""
        return self.rows.messages

    def read(self, topics: Mapping[str, Collection[int]], *, late: bool) -> None:
        """Add the states that new messages show; see ``SinkRows``."""
        self._topics = tuple(topics)
        self.rows.topics = topics
        for states_read in self._read(late=late):
            self.files.add(states_read)

    def look(self, rows: dict[RowKey, HeldRow], *, late: bool) -> None:
        """Follow the messages of chosen rows; see ``SinkRows``."""
        if not late:
            for row in rows.values():
                row.is_late = False
        ids = _ids_of(rows)
        known = len(self.rows.truncations)
        for found in self._read(late=late):
            mine = found.filter(pa.array(np.isin(found["id"].to_numpy(), ids)))
            for state in mine.to_pylist():
                self._follow(rows, state)
            for cut in self.rows.truncations[known:]:
                for (table, _), row in rows.items():
                    if table == cut.table and cut.is_behind(row.place, row.order, row.time_ms):
                        row.is_there, row.is_late = False, late
            known = len(self.rows.truncations)

    def latest(self, bucket: pa.Table) -> pa.Table:
        """Return the last state of each row of a bucket."""
        return latest(bucket, self.rows.truncations)

    def close(self) -> None:
        """Release the connection."""
        self.reader.close()

    def _read(self, *, late: bool) -> Iterator[pa.RecordBatch]:
        for held in self.reader.read(self._topics):
            self.check()
            yield self.rows.read(held, late=late)

    @staticmethod
    def _follow(rows: dict[RowKey, HeldRow], state: Mapping[str, Any]) -> None:
        key = (state["table"], state["key"])
        row = rows.get(key)
        if row is None:  # Another row of the same checksum.
            return
        if state["place"] == row.place or state["time_ms"] >= row.time_ms:
            rows[key] = held_row(state)


@dataclass
class ReaderSink:
    """A sink whose consumers' tables are read by a function that the document names.

    It shows states and no changes: a row that went to another value and back between two reads
    looks as if it had rested. So the same difference must be seen several times.
    """

    sink_id: str
    pipeline: str
    settings: VerifySettings
    tables: Sequence[VerifiedTable]
    files: StateFiles
    check: Callable[[], None]
    notes: list[str] = field(default_factory=list)
    messages: int = 0
    steady_looks: int = 4

    def __post_init__(self) -> None:
        """Find the function.

        Raises:
            SpecError: there is none.
        """
        try:
            self._call: Callable[..., Iterable[pa.RecordBatch]] = load_object(self.settings.reader)
        except (ImportError, AttributeError) as error:
            raise SpecError(
                f"sink {self.sink_id}: verify.reader: {self.settings.reader!r} cannot be loaded "
                f"here ({type(error).__name__}); install it where the verification runs"
            ) from error

    def read(self, topics: Mapping[str, Collection[int]], *, late: bool) -> None:
        """Add the rows of every table, at the second reading; see ``SinkRows``."""
        if not late:
            return  # One state can be kept, and that is the later one.
        for table in self.tables:
            for found in self._states(table, LATE):
                self.files.add(found)

    def look(self, rows: dict[RowKey, HeldRow], *, late: bool) -> None:
        """Read chosen rows; see ``SinkRows``."""
        found: dict[RowKey, HeldRow] = {}
        ids = _ids_of(rows)
        for table in self.tables:
            if any(number == table.number for number, _ in rows):
                for batch in self._states(table, 0):
                    mine = batch.filter(pa.array(np.isin(batch["id"].to_numpy(), ids)))
                    found |= {(s["table"], s["key"]): held_row(s) for s in mine.to_pylist()}
        for key, former in rows.items():
            now = found.get(key, HeldRow(0, is_there=False, is_late=False))
            changed = (now.is_there, now.content) != (former.is_there, former.content)
            now.is_late = late and changed
            rows[key] = now

    def latest(self, bucket: pa.Table) -> pa.Table:
        """Return the last state of each row of a bucket."""
        return latest(bucket)

    def close(self) -> None:
        """Nothing is held."""

    def _states(self, table: VerifiedTable, flags: int) -> Iterator[pa.RecordBatch]:
        schema = table.schema
        where = f"sink {self.sink_id}: verify.reader, table {table.name}"
        request = TableRequest(
            self.pipeline, self.sink_id, table.name, schema.db, schema.schema, schema.table,
            schema.primary_key,
        )  # fmt: skip
        try:
            for batch in self._call(request, **self.settings.options):
                self.check()
                count = batch.num_rows
                self.messages += count
                keys, images = row_images(batch, schema.primary_key, where)
                content, _, _ = row_checksums(images)
                yield states(
                    {
                        "id": row_ids(table.number, keys),
                        "content": content,
                        "order": np.arange(count),
                        "table": np.full(count, table.number, np.int32),
                        "flags": np.full(count, flags, np.uint8),
                        "key": keys,
                    },
                    count,
                )
        except DeltaForgeError:
            raise
        except Exception as error:
            # Its text may quote a row, or hold a secret.
            raise FatalError(f"{where}: the function failed with {type(error).__name__}") from error


@dataclass(frozen=True, slots=True)
class TableRequest:
    """What a reader that a document names is asked for: all rows of one table as they are now.

    Attributes:
        pipeline: its name.
        sink: the sink's id.
        table: the table's full name, ``shop.orders``.
        db: the source's database.
        schema: the table's schema; None where the source has none.
        name: the table's own name.
        key: the columns of its key.
    """

    pipeline: str
    sink: str
    table: str
    db: str
    schema: str | None
    name: str
    key: tuple[str, ...]


def held_row(state: Mapping[str, Any]) -> HeldRow:
    """Return a state as a row that is looked at again."""
    flags = state["flags"]
    return HeldRow(
        state["content"],
        not flags & ABSENT,
        bool(flags & LATE),
        (state["unchanged"] or b"[]") if flags & MARKED else None,
        state["place"],
        state["time_ms"],
        state["order"],
    )


def why_unreadable(sink: Sink) -> str | None:
    """Return why a sink cannot be read back, whatever it is connected to; None: it can."""
    found = None if sink.verify is not None else why_no_messages(sink)
    if found is None:
        return None
    return f"{found}; name a function that reads what your consumers made of it: verify.reader"


def why_no_messages(sink: Sink) -> str | None:
    """Return why a sink's messages cannot be read back; None: they can."""
    if type(sink).open_reader is Sink.open_reader:
        return "not readable: nothing can be read back from a sink of this type"
    if not sink.encoding.is_text:
        return "not readable: messages of this encoding cannot be read back"
    if sink.envelope.paths is None:
        return "not readable: it is not known where this envelope's events hold the row"
    if sink.filter is not None and (sink.filter.synthetic_only or sink.filter.producers):
        return "not readable: it takes only what processors make, not the tables' rows"
    return None


def open_sink(
    sink: Sink, pipeline: str, tables: Sequence[VerifiedTable], files: StateFiles,
    check: Callable[[], None],
) -> SinkRows:  # fmt: skip
    """Return a sink's rows; nothing is read yet.

    Raises:
        SpecError, AccessError, RetryableError: it cannot be opened.
    """
    if sink.verify is not None:
        return ReaderSink(sink.id, pipeline, sink.verify, tables, files, check)
    return open_messages(sink, pipeline, tables, files, check)


def open_messages(
    sink: Sink, pipeline: str, tables: Sequence[VerifiedTable], files: StateFiles,
    check: Callable[[], None], *, own_only: bool = False,
) -> MessageSink:  # fmt: skip
    """Return the rows that a sink's messages tell of; nothing is read yet.

    With ``own_only`` a row whose last message another pipeline wrote is not there.

    Raises:
        SpecError, AccessError, RetryableError: it cannot be opened.
    """
    reader = sink.open_reader(pipeline)
    if reader is None or sink.envelope.paths is None:
        raise SpecError(f"sink {sink.id} cannot be read back")
    has_keys = sink.key_field is not None
    rows = MessageRows(
        sink.envelope.paths,
        tables,
        by_message_key=has_keys and sink.key_template is None,
        splits_keys=sink.writes_tombstones or (has_keys and sink.envelope.splits_key_changes),
        topics={},
        pipeline=pipeline if own_only else None,
    )
    return MessageSink(reader, rows, files, check)


def without_columns(after: bytes, names: bytes) -> int:
    """Return a row image's checksum without some of its columns.

    Args:
        after: JSON text.
        names: a JSON list of columns.
    """
    from airflow_provider_deltaforge.columns import json_fields

    image = pa.array([after], pa.binary())
    places = json_fields.locate_each(image, [[name] for name in orjson.loads(names)])
    content, _, _ = row_checksums(json_fields.without(image, places))
    return int(content[0])


def _ids_of(rows: Collection[RowKey]) -> Any:
    keys = pa.array([key for _, key in rows], pa.binary())
    return row_ids(np.array([table for table, _ in rows], np.int64), keys)
