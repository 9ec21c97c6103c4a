"""Tables of a pipeline that cannot be decoded, and tables that appeared with rows of their own.

Both are written in fenced transactions: a stop before any row is passed over, an arrival together
with the checkpoint that passes the statement it came by.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal

from airflow_provider_deltaforge.events.table_names import unquoted
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.contract import Delete, Put, Store, Write
from airflow_provider_deltaforge.storage.records.record import Record, now_ms


class StoppedTable(Record):
    """A table whose rows are passed over until it is copied again."""

    v: Literal[1] = 1
    table: str
    reason: str
    since_ms: int
    sequence: int = 0
    """Schemas of it that were registered up to this sequence do not describe it any more."""
    repaired_at_ms: int | None = None
    """When a copy made it whole; it streams again since."""


class Arrival(Record):
    """A table whose rows did not come through the log, to be copied once."""

    v: Literal[1] = 1
    id: str
    table: str


class AwaitedPosition(Record):
    """What the stream is to deliver before tables that stopped are copied."""

    v: Literal[1] = 1
    position: dict[str, Any]
    """Where the log ended when the copy was first looked at."""


class CapturedPatterns(Record):
    """Which tables the document named when the log was opened last."""

    v: Literal[1] = 1
    patterns: list[str]


class TableNames(Record):
    """Which table had which name when that was looked at last."""

    v: Literal[1] = 1
    server: str
    tables: dict[str, str]
    is_of_copy: bool = False
    """They are those of when the pipeline's own copy began, and some changed before it was over."""


class TableRecords:
    """The records of one pipeline's tables."""

    def __init__(self, store: Store, pipeline: str) -> None:
        self._store = store
        self._prefix = f"{pipeline}/"

    def stopped(self) -> dict[str, StoppedTable]:
        """Return the tables that are stopped now, by full name."""
        return {
            name: record for name, record in self.marked().items() if record.repaired_at_ms is None
        }

    def marked(self) -> dict[str, StoppedTable]:
        """Return every table that ever stopped, by full name."""
        found = self._store.items(names.TABLES, f"{self._prefix}stopped/")
        records = [StoppedTable.from_stored(text, f"the table {key}") for key, text in found]
        return {record.table: record for record in records}

    def stop(self, table: str, reason: str, sequence: int) -> Put:
        """Return the write that stops a table."""
        return self._put(
            StoppedTable(table=table, reason=reason, since_ms=now_ms(), sequence=sequence)
        )

    def captured(self) -> list[str] | None:
        """Return the patterns of the captured tables when the log was opened last."""
        key = f"{self._prefix}captured"
        text = self._store.get(names.TABLES, key)
        return (
            None
            if text is None
            else CapturedPatterns.from_stored(text, f"the table {key}").patterns
        )

    def capture(self, patterns: list[str], left: Collection[str], sequence: int) -> list[Write]:
        """Return the writes that remember which tables are captured, and which are not any more.

        What happens to the latter is not seen: schemas up to ``sequence`` are not to be trusted.
        """
        marked, now = self.marked(), now_ms()
        doubted = [
            marked[name].model_copy(update={"sequence": sequence})
            if name in marked
            else StoppedTable(
                table=name,
                reason="it was left out of the captured tables",
                since_ms=now,
                sequence=sequence,
                repaired_at_ms=now,
            )
            for name in sorted(left)
        ]
        text = CapturedPatterns(patterns=patterns).model_dump_json().encode()
        return [
            Put(names.TABLES, f"{self._prefix}captured", text),
            *(self._put(record) for record in doubted),
        ]

    def named(self) -> TableNames | None:
        """Return which table had which name when that was looked at last."""
        key = f"{self._prefix}named"
        text = self._store.get(names.TABLES, key)
        return None if text is None else TableNames.from_stored(text, f"the table {key}")

    def name(self, server: str, tables: Mapping[str, str], *, is_of_copy: bool = False) -> Put:
        """Return the write that remembers which table has which name."""
        names_now = TableNames(server=server, tables=dict(tables), is_of_copy=is_of_copy)
        text = names_now.model_dump_json().encode()
        return Put(names.TABLES, f"{self._prefix}named", text)

    def stopped_among(self, tables: Iterable[str]) -> dict[str, StoppedTable]:
        """Return which of some tables are stopped now, by the names given."""
        stopped = self.stopped()
        # An early release stored names with dots unquoted.
        found = {name: stopped.get(name, stopped.get(unquoted(name))) for name in tables}
        return {name: record for name, record in found.items() if record is not None}

    def repair(self, copied: Iterable[str]) -> list[Write]:
        """Return the writes that let copied tables stream again."""
        return [
            self._put(record.model_copy(update={"repaired_at_ms": now_ms()}))
            for record in self.stopped_among(copied).values()
        ]

    def awaited(self, ticket: str) -> Mapping[str, Any] | None:
        """Return the position that the stream is to pass before a request is served."""
        key = f"{self._prefix}awaited/{ticket}"
        text = self._store.get(names.TABLES, key)
        if text is None:
            return None
        return AwaitedPosition.from_stored(text, f"the table {key}").position

    def await_position(self, ticket: str, position: Mapping[str, Any]) -> Put:
        """Return the write that has a request wait until the stream has passed a position."""
        text = AwaitedPosition(position=dict(position)).model_dump_json().encode()
        return Put(names.TABLES, f"{self._prefix}awaited/{ticket}", text)

    def forget_awaited(self, ticket: str) -> Delete:
        """Return the write that forgets what a request waited for."""
        return Delete(names.TABLES, f"{self._prefix}awaited/{ticket}")

    def arrivals(self) -> list[Arrival]:
        """Return the tables that are to be copied and not yet asked for."""
        found = self._store.items(names.TABLES, f"{self._prefix}arrived/")
        return [Arrival.from_stored(text, f"the table {key}") for key, text in found]

    def arrive(self, arrival: Arrival) -> Put:
        """Return the write that keeps an arrival."""
        key = f"{self._prefix}arrived/{arrival.id}"
        return Put(names.TABLES, key, arrival.model_dump_json().encode())

    def taken(self, arrival: Arrival) -> Delete:
        """Return the write that forgets an arrival, once its copy is asked for."""
        return Delete(names.TABLES, f"{self._prefix}arrived/{arrival.id}")

    def _put(self, record: StoppedTable) -> Put:
        key = f"{self._prefix}stopped/{record.table}"
        return Put(names.TABLES, key, record.model_dump_json().encode())
