"""Routes of pipelines: list, make, change, steer and forget them."""

import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Response

from airflow_provider_deltaforge.api import documents
from airflow_provider_deltaforge.api.context import ApiContext, require_pipeline
from airflow_provider_deltaforge.api.errors import ApiError, answering
from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.control.status import PipelineStatus, status, statuses
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.records.control import Control

_OBEYS_S, _LOOK_S = 5.0, 0.1

Document = Annotated[
    dict[str, Any],
    Body(
        examples=[
            {
                "apiVersion": "deltaforge/v1",
                "kind": "Pipeline",
                "metadata": {"name": "orders", "tenant": "acme"},
                "spec": {
                    "source": {
                        "type": "mysql",
                        "config": {
                            "id": "shop",
                            "dsn": "mysql://cdc:${MYSQL_PASSWORD}@db:3306/shop",
                            "tables": ["shop.orders"],
                        },
                    },
                    "sinks": [
                        {
                            "type": "kafka",
                            "config": {"id": "kafka", "brokers": "kafka:9092", "topic": "orders"},
                        }
                    ],
                },
            }
        ]
    ),
]
Patch = Annotated[
    dict[str, Any], Body(examples=[{"spec": {"batch": {"max_events": 1000, "max_ms": 500}}}])
]


def routes(context: ApiContext) -> APIRouter:
    """Return the router of ``/pipelines``."""
    router = APIRouter(prefix="/pipelines", tags=["pipelines"])
    _add_reads(router, context)
    _add_changes(router, context)
    _add_verbs(router, context)
    return router


def _add_reads(router: APIRouter, context: ApiContext) -> None:
    may_read = context.requires("read")

    @router.get("", dependencies=[may_read])
    def list_pipelines(
        label: Annotated[list[str] | None, Query(description="`key`, `key:value`")] = None,
        status: Annotated[str | None, Query()] = None,
        tenant: Annotated[str | None, Query()] = None,
    ) -> list[dict[str, Any]]:
        """Return every pipeline that fits all that is asked for."""
        with context.open_store() as store:
            found = [
                (present, _text(store, present.name))
                for present in statuses(store, context.backend)
            ]
        return [
            _info(present, text)
            for present, text in found
            if status in (None, present.status)
            and tenant in (None, present.tenant)
            and _has_labels(text, label or [])
        ]

    @router.get("/{name}", dependencies=[may_read])
    def get_pipeline(name: str) -> dict[str, Any]:
        """Return one pipeline, with what its driver counts."""
        with context.open_store() as store:
            return _shown(store, name, context)


def _add_changes(router: APIRouter, context: ApiContext) -> None:
    may_change = context.requires("admin")

    @router.post("", dependencies=[may_change])
    def create_pipeline(document: Document) -> dict[str, Any]:
        """Keep a document, and start its pipeline."""
        text = documents.text_of(document)
        name = load(text, expand=False).metadata.name
        with context.changing(name), context.open_store() as store:
            if Control(store, name).read() is not None:
                message = f"pipeline {name!r} already exists; PATCH changes it"
                raise ApiError(409, "PIPELINE_ALREADY_EXISTS", message)
            applied = pipelines.apply(store, text)
            context.starter.start(store, name)
            return {**_shown(store, name, context), "warnings": list(applied.warnings)}

    @router.patch("/{name}", dependencies=[may_change])
    def patch_pipeline(name: str, patch: Patch) -> dict[str, Any]:
        """Lay a partial document over the present one; a pipeline that runs is started anew.

        Nothing is stopped before the merged document was found to be right.
        """
        with context.changing(name), context.open_store() as store:
            require_pipeline(store, name)
            text = documents.patched(_text(store, name), patch)
            wanted = load(text, expand=False).metadata.name
            if wanted != name:
                message = f"the patch names pipeline {wanted!r}; a pipeline keeps its name {name!r}"
                raise ApiError(400, "PIPELINE_NAME_MISMATCH", message)
            applied = pipelines.apply(store, text)
            if applied.record.desired != "stopped":
                context.starter.start(store, name)
            return {**_shown(store, name, context), "warnings": list(applied.warnings)}

    @router.delete("/{name}", dependencies=[may_change], status_code=204)
    def delete_pipeline(name: str) -> Response:
        """Stop a pipeline, and forget its document, positions and dead letters."""
        with context.changing(name), context.open_store() as store:
            require_pipeline(store, name)
            pipelines.delete(store, name, context.backend)
        return Response(status_code=204)


def _add_verbs(router: APIRouter, context: ApiContext) -> None:
    may_operate = context.requires("operate")

    @router.post("/{name}/pause", dependencies=[may_operate])
    def pause_pipeline(name: str) -> dict[str, Any]:
        """Ask the driver to deliver what it holds, and to wait."""
        with context.open_store() as store:
            require_pipeline(store, name)
            with answering(409, "NOT_NOW"):
                pipelines.pause(store, name)
            _wait(store, name, context, lambda word: word in {"paused", "failed", "lost"})
            return _shown(store, name, context)

    @router.post("/{name}/resume", dependencies=[may_operate])
    def resume_pipeline(name: str) -> dict[str, Any]:
        """Resume a paused pipeline, or start one that was stopped or has failed."""
        with context.changing(name), context.open_store() as store:
            require_pipeline(store, name)
            present = status(store, name, context.backend)
            if not present.alive or present.desired == "stopped":
                context.starter.start(store, name, resume=True)
            else:
                pipelines.resume(store, name)
            _wait(store, name, context, lambda word: word not in {"paused", "stopped"})
            return _shown(store, name, context)

    @router.post("/{name}/stop", dependencies=[may_operate])
    def stop_pipeline(name: str) -> dict[str, Any]:
        """Ask the driver to deliver what it holds and to end; return when it is gone."""
        with context.open_store() as store:
            require_pipeline(store, name)
            pipelines.stop(store, name, context.backend)
            return _shown(store, name, context)


def _wait(store: Store, name: str, context: ApiContext, is_so: Callable[[str], bool]) -> None:
    """Wait a moment for a driver to obey, so that the answer shows it in most cases."""
    until = time.monotonic() + _OBEYS_S
    while not is_so(status(store, name, context.backend).status) and time.monotonic() < until:
        time.sleep(_LOOK_S)


def _text(store: Store, name: str) -> str:
    return Control(store, name).document() or ""


def _shown(store: Store, name: str, context: ApiContext) -> dict[str, Any]:
    require_pipeline(store, name)
    present = status(store, name, context.backend)
    checkpoints = pipelines.checkpoints(store, name)
    ops = {**present.as_dict(), "handle": None, "checkpoints": checkpoints}
    ops["lag_seconds"] = None if present.lag_ms is None else present.lag_ms / 1000
    ops["dlq_entries"] = present.dlq.entries or 0
    return {**_info(present, _text(store, name)), "ops": ops}


def _info(present: PipelineStatus, text: str) -> dict[str, Any]:
    return {
        "name": present.name,
        "status": present.status,
        "reason": present.reason,
        "spec": documents.shown(text),
    }


def _has_labels(text: str, wanted: list[str]) -> bool:
    labels = load(text, expand=False).metadata.labels if wanted else {}
    return all(_has_label(labels, label) for label in wanted)


def _has_label(labels: Mapping[str, str], wanted: str) -> bool:
    key, separator, value = wanted.partition(":" if ":" in wanted else "=")
    return key in labels and (not separator or labels[key] == value)
