"""Routes of pipelines: list, make, change, steer and forget them."""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from airflow_provider_deltaforge.api import documents
from airflow_provider_deltaforge.api.access import Caller
from airflow_provider_deltaforge.api.context import ApiContext, require_pipeline, visible
from airflow_provider_deltaforge.api.documents import DocumentText
from airflow_provider_deltaforge.api.errors import ApiError, answering
from airflow_provider_deltaforge.control import pipelines, snapshots
from airflow_provider_deltaforge.control.advice import advice
from airflow_provider_deltaforge.control.status import PipelineStatus, status, statuses
from airflow_provider_deltaforge.control.supervise import Supervisor
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.records.control import Control
from airflow_provider_deltaforge.telemetry.redaction import redacted

_OBEYS_S, _LOOK_S = 5.0, 0.1
_LABEL_SEPARATOR = re.compile("[:=]")

_PATCH = {"spec": {"batch": {"max_events": 1000, "max_ms": 500}}}


def routes(context: ApiContext) -> APIRouter:
    """Return the router of ``/pipelines``."""
    router = APIRouter(prefix="/pipelines", tags=["pipelines"])
    _add_reads(router, context)
    _add_changes(router, context)
    _add_verbs(router, context)
    return router


def _add_reads(router: APIRouter, context: ApiContext) -> None:
    may_read = context.requires("read")

    @router.get("")
    def list_pipelines(
        label: Annotated[
            list[str] | None, Query(description="`key`, `key:value` or `key=value`")
        ] = None,
        status: Annotated[str | None, Query()] = None,
        tenant: Annotated[str | None, Query()] = None,
        dag_id: Annotated[str | None, Query(description="an Airflow DAG that supervises")] = None,
        ops: Annotated[bool, Query(description="with `ops`, but for checkpoints")] = False,  # noqa: FBT002
        caller: Caller = may_read,
    ) -> list[dict[str, Any]]:
        """Return every pipeline that fits all that is asked for."""
        with context.open_store() as store:
            found = [
                (present, _text(store, present.name))
                for present in visible(statuses(store, context.backend), caller)
            ]
            counted = {present.name: _ops(store, present) for present, _ in found} if ops else {}
        return [
            _info(present, text, caller) | ({"ops": counted[present.name]} if ops else {})
            for present, text in found
            if status in (None, present.status)
            and tenant in (None, present.tenant)
            and (dag_id is None or _is_supervised_by(present, dag_id))
            and _has_labels(text, label or [])
        ]

    @router.get("/{name}")
    def get_pipeline(name: str, caller: Caller = may_read) -> dict[str, Any]:
        """Return one pipeline, with what its driver counts."""
        with context.open_store() as store:
            return _shown(store, name, context, caller)


def _add_changes(router: APIRouter, context: ApiContext) -> None:
    may_change = context.requires("admin")

    @router.post("", openapi_extra=documents.body())
    def create_pipeline(text: DocumentText, caller: Caller = may_change) -> dict[str, Any]:
        """Keep a document, and start its pipeline; 409 if there is another of its name.

        The same document again is the same request while nothing has started it.
        """
        starter = context.require_starter()
        name = load(text, expand=False).metadata.name
        with context.changing(name), context.open_store() as store:
            is_new = Control(store, name).read() is None
            if not is_new and not pipelines.awaits_start(store, text):
                message = f"pipeline {name!r} already exists; PATCH changes it"
                raise ApiError(409, "PIPELINE_ALREADY_EXISTS", message)
            applied = pipelines.apply(store, text)
            starter.start(store, name)
            shown = _shown(store, name, context, caller)
            return {**shown, "warnings": list(applied.warnings)}

    @router.patch("/{name}", openapi_extra=documents.body(_PATCH))
    def patch_pipeline(
        name: str, patch: DocumentText, caller: Caller = may_change
    ) -> dict[str, Any]:
        """Lay a partial document over the present one; a pipeline that runs is started anew.

        Nothing is stopped before the merged document was found to be right.
        """
        starter = context.require_starter()
        with context.changing(name), context.open_store() as store:
            require_pipeline(store, name)
            text = documents.patched(_text(store, name), patch)
            wanted = load(text, expand=False).metadata.name
            if wanted != name:
                message = f"the patch names pipeline {wanted!r}; a pipeline keeps its name {name!r}"
                raise ApiError(400, "PIPELINE_NAME_MISMATCH", message)
            applied = pipelines.apply(store, text)
            if applied.record.desired != "stopped":
                starter.start(store, name)
            shown = _shown(store, name, context, caller)
            return {**shown, "warnings": list(applied.warnings)}

    @router.delete("/{name}", dependencies=[may_change], status_code=204)
    def delete_pipeline(name: str) -> Response:
        """Stop a pipeline, and forget its document, positions and dead letters."""
        with context.changing(name), context.open_store() as store:
            require_pipeline(store, name)
            if context.starter is None and status(store, name, context.backend).alive:
                pipelines.ask_to_stop(store, name)
                message = f"{name} was asked to stop; delete it again when its status is stopped"
                raise ApiError(409, "NOT_NOW", message)
            pipelines.delete(store, name, context.backend)
        return Response(status_code=204)


def _add_verbs(router: APIRouter, context: ApiContext) -> None:
    may_operate = context.requires("operate")

    @router.post("/{name}/pause")
    def pause_pipeline(name: str, caller: Caller = may_operate) -> dict[str, Any]:
        """Ask the driver to deliver what it holds, and to wait."""
        with context.open_store() as store:
            require_pipeline(store, name)
            with answering(409, "NOT_NOW"):
                pipelines.pause(store, name)
            _wait(store, name, context, lambda word: word in {"paused", "failed", "lost"})
            return _shown(store, name, context, caller)

    @router.post("/{name}/resume")
    def resume_pipeline(name: str, caller: Caller = may_operate) -> dict[str, Any]:
        """Resume a paused pipeline, or start one that was stopped or has failed."""
        with context.changing(name), context.open_store() as store:
            require_pipeline(store, name)
            present = status(store, name, context.backend)
            if not present.alive or present.desired == "stopped":
                starter = context.require_starter(present)
                starter.start(store, name, resume=True)
            else:
                pipelines.resume(store, name)
            _wait(store, name, context, lambda word: word not in {"paused", "stopped"})
            return _shown(store, name, context, caller)

    @router.post("/{name}/stop")
    def stop_pipeline(name: str, caller: Caller = may_operate) -> dict[str, Any]:
        """Ask the driver to deliver what it holds and to end; return when it is gone.

        In Airflow and behind `deltaforge run` it is asked, and nobody waits.
        """
        with context.open_store() as store:
            require_pipeline(store, name)
            if context.starter is None:
                pipelines.ask_to_stop(store, name)
            else:
                pipelines.stop(store, name, context.backend)
            return _shown(store, name, context, caller)


def _wait(store: Store, name: str, context: ApiContext, is_so: Callable[[str], bool]) -> None:
    """Wait a moment for a driver to obey, so that the answer shows it in most cases."""
    if context.starter is None:
        return
    until = time.monotonic() + _OBEYS_S
    while not is_so(status(store, name, context.backend).status) and time.monotonic() < until:
        time.sleep(_LOOK_S)


def _text(store: Store, name: str) -> str:
    return Control(store, name).document() or ""


def _is_supervised_by(present: PipelineStatus, dag_id: str) -> bool:
    supervisor = Supervisor.of(present.owner)
    return supervisor is not None and supervisor.dag_id == dag_id


def _shown(store: Store, name: str, context: ApiContext, caller: Caller) -> dict[str, Any]:
    require_pipeline(store, name)
    present = status(store, name, context.backend)
    ops = {**_ops(store, present), "checkpoints": pipelines.checkpoints(store, name)}
    rights = caller.rights(present.owner)
    return {**_info(present, _text(store, name), caller), "rights": rights, "ops": ops}


def _ops(store: Store, present: PipelineStatus) -> dict[str, Any]:
    copying = present.status in {"snapshotting", "starting"}
    return {
        **present.as_dict(),
        "handle": None,
        "owner": present.owner,
        "lag_seconds": None if present.lag_ms is None else present.lag_ms / 1000,
        "dlq_entries": present.dlq.entries or 0,
        "sink_errors": {name: sink.reason for name, sink in present.sinks.items() if sink.reason},
        "uptime_seconds": _uptime_s(present),
        "advice": advice(present.status, present.error_class, present.owner),
        "snapshot": snapshots.progress(store, present.name) if copying else None,
    }


def _uptime_s(present: PipelineStatus) -> float:
    begun_ms = (present.handle or {}).get("submitted_at_ms")
    if begun_ms is None or not present.alive:
        return 0.0
    return max(0.0, (pipelines.now_ms() - float(begun_ms)) / 1000)


def _info(present: PipelineStatus, text: str, caller: Caller) -> dict[str, Any]:
    supervisor = Supervisor.of(present.owner)
    return {
        "name": present.name,
        "status": present.status,
        "reason": redacted(present.reason) if present.reason else None,
        "supervisor": asdict(supervisor) if supervisor is not None else None,
        "spec": documents.shown(text) if caller.may("read_document", present.owner) else None,
    }


def _has_labels(text: str, wanted: list[str]) -> bool:
    labels = load(text, expand=False).metadata.labels if wanted else {}
    return all(_has_label(labels, label) for label in wanted)


def _has_label(labels: Mapping[str, str], wanted: str) -> bool:
    key, *value = _LABEL_SEPARATOR.split(wanted, maxsplit=1)
    return key in labels and value in ([], [labels[key]])
