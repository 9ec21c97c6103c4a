"""Whether a pipeline's own snapshot is due, seen from outside its driver."""

from airflow_provider_deltaforge.control.pipelines import existing
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.snapshots import Snapshots


def why_not_due(store: Store, name: str, *, expand: bool = False) -> str | None:
    """Return why the applied document has no snapshot to take; None when its driver must decide.

    Args:
        store: the state store.
        name: the pipeline.
        expand: this process has its driver's environment. Without it the document is read
            unexpanded, so a mode that comes from a variable counts with its default.

    Raises:
        SpecError: there is no such pipeline, or its document cannot be expanded here.
    """
    source = load(existing(store, name).document() or "", expand=expand).spec.source
    if source.snapshot.mode == "never":
        return "its snapshot mode is never, or there is no `snapshot` block"
    if source.snapshot.mode == "initial" and Checkpoints(store, name, source.id).load():
        return "its stream has begun before, and its sinks have checkpoints"
    return None


def found_nothing(store: Store, name: str, generation: int) -> bool:
    """Return whether the job of a generation has ended by itself without anything to take."""
    run = Snapshots(store, name).current()
    progress = existing(store, name).progress()
    ended = progress is not None and (progress.generation, progress.status) == (
        generation,
        "stopped",
    )
    return ended and (run is None or run.finished_at_ms is not None)
