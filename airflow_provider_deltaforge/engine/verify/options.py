"""What a verification is asked for, how far it is, and what it found."""

from dataclasses import dataclass
from pathlib import Path

from airflow_provider_deltaforge.storage.records.verifications import SinkComparison, Verdict


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """How to verify.

    Attributes:
        tables: patterns of captured tables; none: all of them.
        sinks: ids; none: all of them.
        wait_s: how long a sink's checkpoint may take to pass the views.
        rounds: how often rows in motion are looked at again.
        rechecked: so many rows of a sink are looked at again.
        examples: so many keys of a kind are shown.
        kept_keys: so many keys of a kind are kept for a repair.
        directory: for files that are larger than memory; None: the system's.
    """

    tables: tuple[str, ...] = ()
    sinks: tuple[str, ...] = ()
    wait_s: float = 60.0
    rounds: int = 8
    rechecked: int = 20_000
    examples: int = 10
    kept_keys: int = 1_000
    directory: Path | None = None


@dataclass
class VerifyProgress:
    """How far it is.

    Attributes:
        phase: what is being done, for people.
        done: chunks of tables that are read.
        total: chunks of tables.
        rows: rows of the source that were read.
        rounds: looks at rows that differed at first.
    """

    phase: str = "planning"
    done: int = 0
    total: int = 0
    rows: int = 0
    rounds: int = 0


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """What was found.

    Attributes:
        verdict: the worst of all sinks.
        sinks: by sink and table.
        keys: by sink, table and kind, keys that differ; as many as are kept.
    """

    verdict: Verdict
    sinks: list[SinkComparison]
    keys: dict[str, dict[str, dict[str, list[str]]]]

    @classmethod
    def of(
        cls, sinks: list[SinkComparison], keys: dict[str, dict[str, dict[str, list[str]]]]
    ) -> "VerifyResult":
        """Return what comparisons of sinks amount to."""
        tables = [table for sink in sinks for table in sink.tables]
        is_whole = all(sink.reason is None for sink in sinks) and all(
            table.reason is None and not table.inconclusive for table in tables
        )
        verdict: Verdict = "equal" if is_whole else "incomplete"
        if any(table.differences for table in tables):
            verdict = "different"
        return cls(verdict, sinks, keys)
