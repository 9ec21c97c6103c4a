"""Which server a source was read from, and what became of each change of server.

The identity is replaced in the transaction that completes a reconciliation: killed before that, the
next lane sees the change again and goes on with the record; killed after it, there is none.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any, Literal

from pydantic import Field

from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.contract import Append, Put, Store, Write
from airflow_provider_deltaforge.storage.records.record import Record, now_ms

State = Literal["reading", "done", "failed"]

_PAGE = 500


class KnownServer(Record):
    """The server whose log was read last."""

    v: Literal[1] = 1
    identity: dict[str, Any]
    seen_at_ms: int


class Reconciliation(Record):
    """What was found when another server answered."""

    v: Literal[1] = 1
    id: str
    """16 hex digits that name the pair of servers."""
    former: dict[str, Any]
    present: dict[str, Any]
    state: State
    """``reading``: the log up to ``head`` must still tell whether tables really differ."""
    on_schema_drift: str
    position: dict[str, Any] | None
    """Where the stream stood; None when nothing had been read."""
    head: dict[str, Any] | None = None
    """Where the server's log ended when its tables were looked at."""
    drift: list[dict[str, Any]] = Field(default_factory=list)
    """Differences of tables that the log has not explained."""
    explained: list[dict[str, Any]] = Field(default_factory=list)
    """Differences that the log itself brought."""
    reason: str | None = None
    error_class: str | None = None
    started_at_ms: int
    ended_at_ms: int | None = None


class GoneTablesRecord(Record):
    """Tables that were known, and are gone from the server whose log is read."""

    v: Literal[1] = 1
    tables: list[str]


class Failovers:
    """The failover records of one source.

    Args:
        store: the state store.
        source_id: whose servers.
    """

    def __init__(self, store: Store, source_id: str) -> None:
        self._store = store
        self._source_id = source_id

    def identity(self) -> dict[str, Any] | None:
        """Return the server that was read last; None before the first."""
        key = f"identity:{self._source_id}"
        text = self._store.get(names.FAILOVER, key)
        return None if text is None else KnownServer.from_stored(text, f"failover {key}").identity

    def latest(self) -> Reconciliation | None:
        """Return the latest reconciliation, finished or not."""
        key = f"{self._source_id}/reconciliation"
        text = self._store.get(names.FAILOVER, key)
        return None if text is None else Reconciliation.from_stored(text, f"failover {key}")

    def history(self) -> list[Reconciliation]:
        """Return every reconciliation that ended, oldest first."""
        key = f"{self._source_id}/history"
        found: list[Reconciliation] = []
        after = 0
        while page := self._store.read(names.FAILOVER, key, after, _PAGE):
            found += [Reconciliation.from_stored(e.value, f"failover {key}") for e in page]
            after = page[-1].seq
        return found

    def gone(self) -> set[str]:
        """Return the tables that are gone from the server that was read last, by full name."""
        key = f"gone:{self._source_id}"
        text = self._store.get(names.FAILOVER, key)
        return (
            set()
            if text is None
            else set(GoneTablesRecord.from_stored(text, f"failover {key}").tables)
        )

    def put_gone(self, tables: Collection[str]) -> Put:
        """Return the write that remembers which tables are gone."""
        text = GoneTablesRecord(tables=sorted(tables)).model_dump_json().encode()
        return Put(names.FAILOVER, f"gone:{self._source_id}", text)

    def meet(self, identity: Mapping[str, Any]) -> Put:
        """Return the write that remembers a server."""
        known = KnownServer(identity=dict(identity), seen_at_ms=now_ms())
        text = known.model_dump_json().encode()
        return Put(names.FAILOVER, f"identity:{self._source_id}", text)

    def put(self, record: Reconciliation) -> Put:
        """Return the write that keeps a reconciliation that goes on."""
        key = f"{self._source_id}/reconciliation"
        return Put(names.FAILOVER, key, record.model_dump_json().encode())

    def end(self, record: Reconciliation) -> list[Write]:
        """Return the writes that end a reconciliation; one that is done changes the identity.

        A failure that repeats is recorded once: a driver may restart again and again.
        """
        writes: list[Write] = [self.put(record)]
        former = self.latest()
        is_known = former is not None and _essence(former) == _essence(record)
        if not is_known:
            text = record.model_dump_json().encode()
            writes.append(Append(names.FAILOVER, f"{self._source_id}/history", text))
        if record.state == "done":
            writes.append(self.meet(record.present))
        return writes


def pair_id(former: Mapping[str, Any], present: Mapping[str, Any]) -> str:
    """Return what names a pair of servers."""
    text = json.dumps([former, present], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _essence(record: Reconciliation) -> tuple[object, ...]:
    return record.id, record.started_at_ms, record.state, record.reason
