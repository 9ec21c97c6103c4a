"""What the page shows, as plain data made from the control record, the progress and the snapshot.

Documents are kept unexpanded, so no answer can hold a resolved secret; texts that drivers wrote
go through the redaction once more.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from airflow_provider_deltaforge.control.launch import Backend
from airflow_provider_deltaforge.control.pipelines import existing
from airflow_provider_deltaforge.control.status import PipelineStatus, status
from airflow_provider_deltaforge.control.supervise import Supervisor
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.plugins_airflow.advice import advice
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.records.control import Control, ControlRecord
from airflow_provider_deltaforge.storage.records.requests import SnapshotResults
from airflow_provider_deltaforge.storage.records.snapshots import Snapshots
from airflow_provider_deltaforge.telemetry.redaction import redacted, redacted_document

_RESULTS_SHOWN = 10


def supervisors(store: Store) -> dict[str, Supervisor | None]:
    """Return who supervises each pipeline, by name."""
    found = {}
    for name in Control.list_pipelines(store):
        record = Control(store, name).read()
        if record is not None:  # Else it was deleted between the two reads.
            found[name] = Supervisor.of(record.owner)
    return found


def overview(store: Store, name: str, backend: Backend, owner: Supervisor | None) -> dict[str, Any]:
    """Return what the list shows of one pipeline.

    Raises:
        SpecError: there is no such pipeline.
    """
    present = status(store, name, backend)
    copying = present.status in {"snapshotting", "starting"}
    snapshot = Snapshots(store, name).progress() if copying else None
    return {**_summary(present, owner), "snapshot": snapshot}


def details(store: Store, name: str, backend: Backend) -> dict[str, Any]:
    """Return everything about one pipeline, except its log and its document.

    Raises:
        SpecError: there is no such pipeline.
    """
    record = _record(store, name)
    present = status(store, name, backend)
    return {
        **_summary(present, Supervisor.of(record.owner)),
        "owner": record.owner,
        "source_id": record.source_id,
        "position": present.position,
        "sinks": {sink_id: sink.model_dump() for sink_id, sink in present.sinks.items()},
        "tables": {table: counts.events for table, counts in present.tables.items()},
        **_copies(Snapshots(store, name)),
        "requests": [request.model_dump() for request in record.requests],
        "results": _results(store, name),
        "driver": _driver(record, backend),
    }


def document(store: Store, name: str) -> dict[str, Any]:
    """Return the document that was applied, its variables unresolved.

    Raises:
        SpecError: there is no such pipeline.
    """
    return {"document": redacted_document(existing(store, name).document() or "")}


def supervisor_of(store: Store, name: str) -> Supervisor | None:
    """Return who supervises a pipeline.

    Raises:
        SpecError: there is no such pipeline.
    """
    return Supervisor.of(_record(store, name).owner)


def _summary(present: PipelineStatus, owner: Supervisor | None) -> dict[str, Any]:
    return {
        "name": present.name,
        "status": present.status,
        "desired": present.desired,
        "generation": present.generation,
        "since_ms": present.since_ms,
        "reason": redacted(present.reason) if present.reason else None,
        "error_class": present.error_class,
        "advice": advice(present.status, present.error_class, watched=owner is not None),
        "heartbeat_age_s": present.heartbeat_age_s,
        "lag_ms": present.lag_ms,
        "events": present.events,
        "bytes": present.bytes,
        "restarts": present.restarts,
        "supervisor": asdict(owner) if owner is not None else None,
    }


def _copies(records: Snapshots) -> dict[str, Any]:
    """Return how far the pipeline's own snapshot is, and the latest copy that was asked for."""
    own, requested = records.current(), records.requested()
    return {
        "snapshot": records.progress(own) if own is not None else None,
        "copy": records.progress(requested) if requested is not None else None,
    }


def _results(store: Store, name: str) -> list[dict[str, Any]]:
    """Return what became of the latest snapshot requests, newest first."""
    shown = ("id", "state", "wish", "finished_at_ms", "reason", "error_class")
    return [
        {**{key: getattr(result, key) for key in shown}, "rows": _rows(result.tables)}
        for result in reversed(SnapshotResults(store, name).all()[-_RESULTS_SHOWN:])
    ]


def _rows(tables: Mapping[str, Mapping[str, int]]) -> int:
    return sum(progress.get("rows", 0) for progress in tables.values())


def _driver(record: ControlRecord, backend: Backend) -> dict[str, Any] | None:
    if record.handle is None:
        return None
    shown = ("backend", "name", "host", "pid", "script", "submitted_at_ms", "generation")
    return {
        **{key: record.handle.get(key) for key in shown},
        "job": backend.status(record.handle).state.value,
        "links": dict(backend.links(record.handle)),
    }


def _record(store: Store, name: str) -> ControlRecord:
    record = existing(store, name).read()
    if record is None:
        raise SpecError(f"pipeline {name!r} was deleted")
    return record
