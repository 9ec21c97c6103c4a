"""Verifications: what the last ones of a pipeline found, and the one that is running.

The one that runs stores its progress every few seconds under a key that expires: one that was
killed counts as over half a minute later, and leaves nothing behind.
"""

from collections.abc import Sequence
from typing import Literal

from pydantic import ConfigDict, Field

from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.spec.settings import Settings
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.contract import Put, Store
from airflow_provider_deltaforge.storage.records.record import Record

KEPT = 10
"""So many results are kept."""
ALIVE_S = 30.0
"""One that stored no progress for so long has ended."""

KINDS = ("missing", "extra", "different", "inconclusive")
"""How a row can differ; ``inconclusive``: it changed at every look."""

Verdict = Literal["equal", "different", "incomplete"]


class TableComparison(Settings):
    """One table in one sink."""

    model_config = ConfigDict(frozen=False)

    table: str
    """Its full name."""
    reason: str | None = None
    """Why it could not be compared; the counts then mean nothing."""
    rows: int = 0
    """Rows of the source that were compared."""
    missing: int = 0
    """Rows of the source that the sink lacks."""
    extra: int = 0
    """Rows of the sink that the source lacks."""
    different: int = 0
    """Rows that both have, with other values."""
    inconclusive: int = 0
    """Rows that changed at every look."""
    dropped: int = 0
    """Rows that processors do not let through as they are now; not compared."""
    examples: dict[str, list[str]] = Field(default_factory=dict)
    """Keys by ``missing``, ``extra``, ``different`` and ``inconclusive``; a limited number."""

    @property
    def differences(self) -> int:
        """How many rows differ."""
        return self.missing + self.extra + self.different


class SinkComparison(Settings):
    """One sink."""

    model_config = ConfigDict(frozen=False)

    sink: str
    reason: str | None = None
    """Why it could not be compared at all."""
    messages: int = 0
    """That were read."""
    tables: list[TableComparison] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)


class Verification(Record):
    """One verification."""

    model_config = ConfigDict(frozen=False)

    v: Literal[1] = 1
    id: str
    by: str
    """Who asked for it."""
    tables: list[str] = Field(default_factory=list)
    """The patterns that were given; none: all captured tables."""
    started_at_ms: int
    finished_at_ms: int | None = None
    state: Literal["running", "finished", "failed", "cancelled"] = "running"
    reason: str | None = None
    """Why it failed."""
    error_class: str | None = None
    """What kind of error that was; see ``errors``."""
    verdict: Verdict | None = None
    """``incomplete``: nothing differs, but something could not be compared."""
    phase: str = ""
    """What is being done."""
    done: int = 0
    total: int = 0
    """Chunks of tables."""
    rows: int = 0
    """Of the source, that were read."""
    rounds: int = 0
    """Looks at rows that differed at first."""
    sinks: list[SinkComparison] = Field(default_factory=list)

    @property
    def differences(self) -> int:
        """How many rows differ, in all sinks."""
        return sum(table.differences for sink in self.sinks for table in sink.tables)


class VerificationSummary(Record):
    """What metrics show of the last verification that came to a result."""

    v: Literal[1] = 1
    finished_at_ms: int
    rows: dict[str, int]
    """Rows that were compared, by sink; of a sink that could not be compared there are none."""
    differences: dict[str, dict[str, int]]
    """Rows by sink, and by ``missing``, ``extra``, ``different`` and ``inconclusive``."""


class DifferingKeys(Record):
    """Keys that one verification found to differ; as many as are kept."""

    v: Literal[1] = 1
    id: str
    keys: dict[str, dict[str, dict[str, list[str]]]] = Field(default_factory=dict)
    """By sink, table and kind of difference, as events hold them."""


class Verifications:
    """The verifications of one pipeline."""

    def __init__(self, store: Store, pipeline: str) -> None:
        self._store = store
        self._prefix = f"{pipeline}/"

    def begin(self, verification: Verification) -> bool:
        """Take the pipeline's turn; False while another one is running."""
        slot = self._store.slot(names.VERIFICATIONS, f"{self._prefix}turn")
        if self.running() is not None:
            return False
        self.alive(verification)
        taken = self._store.swap(
            names.VERIFICATIONS,
            f"{self._prefix}turn",
            0 if slot is None else slot.version,
            verification.id.encode(),
        )
        if taken is None:
            self._store.delete(names.VERIFICATIONS, self._alive_key(verification.id))
        return taken is not None

    def alive(self, verification: Verification) -> None:
        """Store its progress, which keeps it alive."""
        text = verification.model_dump_json().encode()
        self._store.put(names.VERIFICATIONS, self._alive_key(verification.id), text, ALIVE_S)

    def is_mine(self, verification_id: str) -> bool:
        """Return whether nobody else has taken the turn."""
        slot = self._store.slot(names.VERIFICATIONS, f"{self._prefix}turn")
        return slot is not None and slot.state == verification_id.encode()

    def running(self) -> Verification | None:
        """Return the one that is running; None without one."""
        slot = self._store.slot(names.VERIFICATIONS, f"{self._prefix}turn")
        if slot is None:
            return None
        text = self._store.get(names.VERIFICATIONS, self._alive_key(slot.state.decode()))
        if text is None:
            return None
        return Verification.from_stored(text, f"the verification of {self._prefix[:-1]}")

    def finish(self, verification: Verification, keys: DifferingKeys) -> None:
        """Keep a result, and the keys that it found; only the last results stay.

        Raises:
            RetryableError: another one took the turn, because this one was silent too long.
        """
        if not self.is_mine(verification.id):
            raise RetryableError(
                "this verification was silent for too long, and another one took its place"
            )
        kept = _Results(results=[verification, *self.results()][:KEPT])
        summary = _summary_of(verification)
        more = [] if summary is None else [self._put("summary", summary)]
        self._store.transact([*more, self._put("results", kept), self._put("keys", keys)])
        self._store.delete(names.VERIFICATIONS, self._alive_key(verification.id))

    def results(self) -> Sequence[Verification]:
        """Return the last results, newest first."""
        text = self._store.get(names.VERIFICATIONS, f"{self._prefix}results")
        return [] if text is None else _Results.from_stored(text, self._name).results

    def summary(self) -> VerificationSummary | None:
        """Return what metrics show; None before the first result."""
        text = self._store.get(names.VERIFICATIONS, f"{self._prefix}summary")
        return None if text is None else VerificationSummary.from_stored(text, self._name)

    def keys(self) -> DifferingKeys | None:
        """Return the keys that the last verification found to differ."""
        text = self._store.get(names.VERIFICATIONS, f"{self._prefix}keys")
        return None if text is None else DifferingKeys.from_stored(text, self._name)

    def _put(self, name: str, record: Record) -> Put:
        text = record.model_dump_json().encode()
        return Put(names.VERIFICATIONS, f"{self._prefix}{name}", text)

    @property
    def _name(self) -> str:
        return f"the verifications of {self._prefix[:-1]}"

    def _alive_key(self, verification_id: str) -> str:
        return f"{self._prefix}alive/{verification_id}"


class _Results(Record):
    v: Literal[1] = 1
    results: list[Verification]


def _summary_of(found: Verification) -> VerificationSummary | None:
    if found.state != "finished" or found.finished_at_ms is None:
        return None
    rows, differences = {}, {}
    for sink in found.sinks:
        tables = [table for table in sink.tables if table.reason is None]
        if tables and sink.reason is None:
            rows[sink.sink] = sum(table.rows for table in tables)
            differences[sink.sink] = {
                kind: sum(getattr(table, kind) for table in tables) for kind in KINDS
            }
    return VerificationSummary(
        finished_at_ms=found.finished_at_ms, rows=rows, differences=differences
    )
