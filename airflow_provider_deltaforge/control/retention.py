"""For how long the source still keeps the log that a pipeline has not delivered."""

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_deltaforge.control.pipelines import existing
from airflow_provider_deltaforge.errors import PositionLostError, SpecError
from airflow_provider_deltaforge.sources.contract import Source
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.measurements import LogRetention


@dataclass(frozen=True, slots=True)
class RetentionLeft:
    """What is left of the log's retention, as the source itself says it.

    Attributes:
        left: seconds, or bytes where ``is_by_size``, until the source may drop what the slowest
            sink needs; 0: it is dropped already. None: there is no limit, or it ``is_unknown``.
        is_by_size: the source limits its log by size, as PostgreSQL's replication slots do.
        is_unknown: there is a limit, and the source cannot tell how far it is.
        lost: what is lost; None while everything is there.
    """

    left: float | None
    is_by_size: bool = False
    is_unknown: bool = False
    lost: str | None = None

    def against(self, seconds: float | None, size: int | None) -> tuple[bool | None, str]:
        """Return whether less than a limit is left, and that in words; None: it is not known.

        Args:
            seconds: the limit of a source that limits its log by time.
            size: bytes, the limit of one that does so by size.

        Raises:
            SpecError: the limit that this source needs is missing.
        """
        limit = size if self.is_by_size else seconds
        if self.lost is not None:
            return True, f"the source no longer has the log: {self.lost}"
        if self.is_unknown:
            return None, "the source does not tell how long it keeps the log"
        if self.left is None:
            return False, "the source keeps what was not delivered without a limit"
        if limit is None:
            needed = "size: give `below_bytes`" if self.is_by_size else "time: give `below`"
            raise SpecError(f"this source limits its log by {needed}")
        unit = "bytes" if self.is_by_size else "seconds"
        words = f"{self.left:,.0f} {unit} of the log's retention are left, limit {limit:,.0f}"
        return self.left < limit, words


def retention_left(store: Store, name: str, environment: Mapping[str, str]) -> RetentionLeft:
    """Ask a pipeline's source how long it keeps the log behind the slowest sink.

    The pipeline need not run.

    Args:
        store: the state store.
        name: the pipeline.
        environment: the values of the document's variables.

    Returns:
        What is left; while no sink has a position nothing can be lost, so there is no limit.

    Raises:
        SpecError: there is no such pipeline, a variable has no value, or such a source cannot say.
        RetryableError, AccessError: the source was not asked.
    """
    control = existing(store, name)
    spec = load(control.document() or "", environment).spec
    source: Source = spec.source
    if type(source).log_retention is Source.log_retention:
        raise SpecError(
            f"a source of type {source.connector} does not say for how long it keeps its log"
        )
    held = Checkpoints(store, name, source.id).load()
    slowest = source.earliest([held[sink.id] for sink in spec.sinks if sink.id in held])
    if slowest is None:
        return RetentionLeft(None)
    progress = control.progress()
    commit_ms = None if progress is None else progress.last_commit_ms
    try:
        kept = source.log_retention(slowest, commit_ms) or LogRetention()
        if kept.kept_bytes is not None:
            return RetentionLeft(kept.left_bytes, is_by_size=True)
        if kept.left_s is None and (kept.keeps_s is not None or kept.left_bytes is None):
            source.reach(slowest)
            return RetentionLeft(None, is_unknown=True)
    except PositionLostError as error:
        return RetentionLeft(0, lost=str(error))
    return RetentionLeft(kept.left_s)
