"""What happens when another server answers: is the log still ours, and are the tables?

Asked whenever a lane opens the log. A server that was known goes on. Another one is reconciled:
first the position (the source says whether it can be followed there), then the tables.

Tables are compared as the catalog shows them, which is at the head of the server's log, while the
stream may stand far before it: the log between may hold the very statement that explains a
difference. So, where the log tells schema changes, differences are judged when the stream has
passed that head. Until then the record says ``reading``; what it has learnt is stored together
with the checkpoints, so that a lane that is killed goes on with it.
"""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.engine.base.task_context import TaskContext
from airflow_provider_deltaforge.errors import (
    DeltaForgeError,
    PositionLostError,
    SchemaError,
    ServerChangedError,
)
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.events.table_names import qualified_name
from airflow_provider_deltaforge.schemas.drift import Delta, deltas, described
from airflow_provider_deltaforge.schemas.registry import Registry
from airflow_provider_deltaforge.sources.contract import Identity, Source
from airflow_provider_deltaforge.spec.document import Pipeline
from airflow_provider_deltaforge.storage.contract import Write
from airflow_provider_deltaforge.storage.records.failover import Failovers, Reconciliation, pair_id
from airflow_provider_deltaforge.storage.records.record import now_ms
from airflow_provider_deltaforge.telemetry.redaction import redacted

_log = logging.getLogger(__name__)


class SourceIdentity:
    """Compares servers for one lane. Used by its delivery thread.

    Args:
        context: the opened job; its fence guards every write.
        registry: the schemas the source's tables have had.
    """

    def __init__(self, context: TaskContext, registry: Registry) -> None:
        self._context = context
        self._registry = registry
        self._source = context.pipeline.spec.source
        self._policy = getattr(self._source, "on_schema_drift", "adapt")
        self._records = Failovers(context.store, self._source.id)
        self._reading: Reconciliation | None = None
        halts = self._policy == "halt"
        self._gone_tables = GoneTables(self._source, registry, self._records, wanted=halts)

    def settle(self, position: Position | None, held: Sequence[Position] = ()) -> list[Write]:
        """Compare the server that answers with the one that was read last.

        Args:
            position: where the stream goes on; None when it begins.
            held: where each sink stands. One that is ahead skips the log up to there, so the
                server must have all of it too.

        Returns:
            What is to be stored before the log is read.

        Raises:
            PositionLostError: the log cannot be followed there.
            SchemaError: a table became another one, and that is not to be adapted to.
            RetryableError: source or store are away, or the server is not ready yet.
        """
        self._reading = None
        present = self._source.identity()
        known = self._records.identity()
        if present is None or known is None or known == present:
            for each in held:
                if each != position:
                    self._source.reach(each)
            met = [] if present is None or known else [self._records.meet(present)]
            return [*met, *self._gone_tables.look()]
        _log.warning("another server answers", extra={"former": known, "present": dict(present)})
        return self._reconcile(known, present, position, held)

    def begin(self) -> list[Write]:
        """Return what is to be stored when the tables are copied before anything was streamed.

        Whatever was known of another server says nothing about these copies.
        """
        present = self._source.identity()
        known = self._records.identity()
        if present is None or known == present:
            return []
        if known is None:
            return [self._records.meet(present)]
        return self._records.end(_ended(self._record(known, present, None)))

    @property
    def is_reading(self) -> bool:
        """Return whether differences are judged where the stream gets to a place."""
        return self._reading is not None

    def watch(self, rows: pa.RecordBatch) -> None:
        """Take note of schema changes that come with the log."""
        record = self._reading
        if record is None:
            self._gone_tables.watch(rows)
            return
        changes = schema_changes(rows)
        news = [
            delta
            for delta in record.drift
            if any(_explains(db, change, Delta(**delta)) for db, change in changes)
        ]
        self._reading = record.model_copy(
            update={
                "explained": [*record.explained, *news],
                "drift": [delta for delta in record.drift if delta not in news],
            }
        )

    def passed(self, position: Position) -> tuple[list[Write], DeltaForgeError | None]:
        """Return what is to be stored with the checkpoints, and what ends the lane after that."""
        record = self._reading
        if record is None:
            return self._gone_tables.passed(), None
        if not self._source.covers(position, record.head):
            return [self._records.put(record)], None
        self._reading = None
        found = [Delta(**delta) for delta in record.drift]
        try:
            self._judge(found)
        except SchemaError as error:
            return self._records.end(_ended(record, error)), error
        if not found:
            return self._records.end(_ended(record)), None
        self._adapt(found, position)
        again = ServerChangedError("tables differ from what the log says; it is opened anew")
        return self._records.end(_ended(record)), again

    def _reconcile(
        self, known: Identity, present: Identity, at: Position | None, held: Sequence[Position]
    ) -> list[Write]:
        record = self._record(known, present, at)
        if at is None:
            return self._records.end(_ended(record))
        found: list[Delta] = []
        try:
            for each in (at, *(place for place in held if place != at)):
                self._source.reach(each)
            found, head = self._look(record)
            record = record.model_copy(update={"drift": [asdict(delta) for delta in found]})
            if found and head is not None and not self._source.covers(at, head):
                self._reading = record.model_copy(update={"state": "reading", "head": dict(head)})
                return [self._records.put(self._reading)]
            self._judge(found)
        except (PositionLostError, SchemaError) as error:
            self._store(self._records.end(_ended(record, error)))
            raise
        self._adapt(found, at)
        return self._records.end(_ended(record))

    def _record(self, known: Identity, present: Identity, at: Position | None) -> Reconciliation:
        """Return the record of this change of server: the unfinished one, if there is one."""
        pair = pair_id(known, present)
        former = self._records.latest()
        if former is not None and former.id == pair and former.state != "done":
            return former.model_copy(update={"on_schema_drift": self._policy})
        return Reconciliation(
            id=pair,
            former=dict(known),
            present=dict(present),
            state="reading",
            on_schema_drift=self._policy,
            position=dict(at) if at is not None else None,
            started_at_ms=now_ms(),
        )

    def _look(self, record: Reconciliation) -> tuple[list[Delta], Position | None]:
        """Return what differs, and which place of the log has to be passed to judge it.

        A failed record is judged at once: what it failed for must not pass a restart.
        """
        known = [Delta(**delta) for delta in record.drift]
        if record.state == "reading" and record.head is not None:
            return known, record.head
        stored = [version.schema for version in self._registry.all()]
        live = self._source.catalog(stored)
        # What went away on the former server is no difference between the two.
        gone = {name for name in self._records.gone() if live.get(name) is None}
        found = [
            delta
            for schema in stored
            if schema.full_name in live and schema.full_name not in gone
            for delta in deltas(schema, live[schema.full_name])
            if asdict(delta) not in record.explained
        ]
        if not self._source.logs_schema_changes or any(delta in known for delta in found):
            return found, None
        return found, self._source.head()

    def _judge(self, found: Sequence[Delta]) -> None:
        keys = [delta for delta in found if delta.kind == "primary_key_changed"]
        if keys:
            raise SchemaError(
                f"the primary key changed with a failover: {described(keys)}. Events before and "
                "after it cannot be told to belong together; give the table its key back, or take "
                f"a new snapshot: {repair(self._context.pipeline)}"
            )
        if found and self._policy == "halt":
            raise SchemaError(
                "schema drift detected after failover and on_schema_drift=halt: "
                f"{described(found)}. Give the tables their former shape, or set "
                "source.on_schema_drift to adapt, then run the pipeline again"
            )

    def _adapt(self, found: Sequence[Delta], position: Position) -> None:
        """Register the tables that differ as they are now."""
        if not found:
            return
        _log.warning("tables differ after a failover", extra={"drift": described(found)})
        tables = {delta.table for delta in found}
        stored = [v.schema for v in self._registry.all() if v.schema.full_name in tables]
        live = self._source.catalog(stored).values()
        self._registry.register_all(
            [(schema, position) for schema in live if schema is not None],
            compare=self._source.compare,
            fence=self._context.fence,
        )

    def _store(self, writes: Sequence[Write]) -> None:
        self._context.store.transact(writes, self._context.fence)


def repair(pipeline: Pipeline) -> str:
    """Return the commands that begin a pipeline anew, with a snapshot."""
    name = pipeline.name
    steps = [f"deltaforge stop {name}", f"deltaforge reset {name} --confirm {name}"]
    steps.append("deltaforge run FILE")
    if pipeline.spec.source.snapshot.mode == "never":
        steps.append("deltaforge snapshot FILE --again (while it runs)")
    return ", ".join(steps)


def advised(error: Exception, pipeline: Pipeline) -> Exception:
    """Return a lost position with the commands that repair it; other errors as they are."""
    if not isinstance(error, PositionLostError):
        return error
    return PositionLostError(f"{error}. To begin anew with a snapshot: {repair(pipeline)}")


def _ended(record: Reconciliation, error: DeltaForgeError | None = None) -> Reconciliation:
    return record.model_copy(
        update={
            "state": "done" if error is None else "failed",
            "reason": None if error is None else redacted(str(error)),
            "error_class": None if error is None else error.error_class,
            "ended_at_ms": now_ms(),
        }
    )


def _explains(db: str, change: Mapping[str, Any], delta: Delta) -> bool:
    """Return whether a schema change in the log can be what made a difference."""
    tables = change.get("tables") or ()
    if not tables:  # A statement about the whole database.
        return delta.table.startswith(qualified_name(db, ""))
    if delta.table not in tables:
        return False
    sql = str(change.get("sql", "")).lower()
    if not sql.lstrip().startswith("alter") or "rename" in sql or "exchange" in sql:
        return True
    return (delta.column or "key").lower() in sql


_DROPS = re.compile(r"\s*DROP\s+TABLE\b", re.IGNORECASE)


class GoneTables:
    """Remembers the tables that are gone from the server: later they are no difference.

    The registry keeps every table it ever knew. When another server answers, only what that server
    lacks and the former one had is a difference. Kept where differences are not adapted to.

    Args:
        source: whose tables.
        registry: the schemas they have had.
        records: where the account is kept.
        wanted: somebody asks for it, so that looking is worth its while.
    """

    def __init__(
        self, source: Source, registry: Registry, records: Failovers, *, wanted: bool
    ) -> None:
        self._source = source
        self._registry = registry
        self._records = records
        self._wanted = wanted
        self._news: set[str] | None = None

    def look(self) -> list[Write]:
        """Return what is to be stored of a server that is known, when its log is opened."""
        self._news = None
        if not self._wanted:
            return []
        stored = [version.schema for version in self._registry.all()]
        live = self._source.catalog(stored) if stored else {}
        gone = {name for name, table in live.items() if table is None}
        return [] if gone == self._records.gone() else [self._records.put_gone(gone)]

    def watch(self, rows: pa.RecordBatch) -> None:
        """Take note of what the log drops or makes."""
        changes = schema_changes(rows) if self._wanted else []
        if not changes:
            return
        former = self._records.gone() if self._news is None else self._news
        gone = set(former)
        for _, change in changes:
            named = set(change.get("tables") or ())
            gone = gone | named if _DROPS.match(str(change.get("sql", ""))) else gone - named
        if gone != former:
            self._news = gone

    def passed(self) -> list[Write]:
        """Return what is to be stored with the next checkpoint."""
        news, self._news = self._news, None
        return [] if news is None else [self._records.put_gone(news)]


def schema_changes(rows: pa.RecordBatch) -> list[tuple[str, Any]]:
    """Return the schema changes among rows, each with its database."""
    if rows.column("ddl").null_count == rows.num_rows:
        return []
    ddl = rows.filter(pc.equal(rows.column("op").cast(pa.utf8()), "ddl"))
    texts = zip(ddl.column("db").to_pylist(), ddl.column("ddl").to_pylist(), strict=True)
    return [(db, json.loads(text or "{}")) for db, text in texts]
