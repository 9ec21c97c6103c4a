"""A fleet that a supervisor starts, as a job with a control record of its own.

So it is found again, adopted, restarted, stopped and watched as a driver is: by generation, owner
and handle, with an epoch and a heartbeat. The record lies beside those of pipelines, under a key
that none of them can have, and without a document.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from airflow_provider_deltaforge.control.launching.contract import Backend
from airflow_provider_deltaforge.control.pipelines import changed
from airflow_provider_deltaforge.control.status import PipelineStatus, status
from airflow_provider_deltaforge.control.supervise import HOPELESS
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.spec.document import NAME_PATTERN
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.records.control import Control
from airflow_provider_deltaforge.storage.records.fleets import read_contents, record_name


def named_after(documents: Sequence[Path]) -> str:
    """Return the name of a fleet that nobody named: the same for the same documents."""
    shown = re.sub(r"[^A-Za-z0-9]+", "-", documents[0].stem).strip("-") or "documents"
    paths = json.dumps([str(path) for path in documents])
    return f"{shown[:60]}-{hashlib.sha256(paths.encode()).hexdigest()[:8]}"


def apply_fleet(store: Store, fleet: str, settings: Mapping[str, Any]) -> str:
    """Keep what a fleet is to be started with; return the name of its record.

    One that runs with other settings, or other arguments, is replaced by the next ``start``.

    Args:
        store: the state store.
        fleet: its name.
        settings: what the arguments of its command do not say, without secrets.

    Raises:
        SpecError: it cannot have this name.
    """
    if not re.fullmatch(NAME_PATTERN, fleet):
        raise SpecError(
            f"fleet: {fleet!r} is no name; use letters, digits, '.', '_' and '-', at most 100"
        )
    text = json.dumps(settings, sort_keys=True)
    spec_hash = hashlib.sha256(text.encode()).hexdigest()
    name = record_name(fleet)
    Control(store, name).update(lambda record: changed(record, spec_hash=spec_hash))
    return name


def fleet_summary(store: Store, name: str, backend: Backend) -> dict[str, Any]:
    """Return how a fleet is, and each of its pipelines, as JSON-able data.

    ``failed`` names the pipelines that stay failed until a person acts; one that is about to be
    started again is not among them. ``troubles`` says which documents are not used, and why.

    Args:
        store: the state store.
        name: of the fleet's record.
        backend: asked for the processes of the drivers.
    """
    present, contents = status(store, name, backend), read_contents(store, name)
    found: dict[str, PipelineStatus] = {}
    for pipeline in contents.pipelines:
        with suppress(SpecError):  # Not applied yet, or deleted.
            found[pipeline] = status(store, pipeline, backend)
    failed = [
        pipeline
        for pipeline, each in found.items()
        if each.desired != "stopped"
        and not each.alive
        and (pipeline in contents.given_up or each.error_class in HOPELESS)
    ]
    shown = ("status", "reason", "error_class", "generation", "restarts", "lag_ms", "events")
    return {
        "fleet": name,
        "status": present.status,
        "reason": present.reason,
        "generation": present.generation,
        "restarts": present.restarts,
        "pipelines": {
            pipeline: {key: getattr(each, key) for key in shown} for pipeline, each in found.items()
        },
        "failed": failed,
        "troubles": contents.troubles,
    }
