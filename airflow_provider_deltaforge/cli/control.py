"""Commands about running pipelines: ``status``, ``pause``, ``resume``, ``stop``, ``delete``."""

import json
import time
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live

from airflow_provider_deltaforge.cli.exit_codes import FAILED
from airflow_provider_deltaforge.cli.options import (
    DEFAULT_STORE,
    JsonOption,
    NameArgument,
    StoreOption,
    backend_of,
    opened,
    out,
    pipeline_names,
)
from airflow_provider_deltaforge.cli.views import copy_table, pipeline_details, pipelines_table
from airflow_provider_deltaforge.control import pipelines, snapshots
from airflow_provider_deltaforge.control.launching.backends import LaunchBackends
from airflow_provider_deltaforge.control.status import PipelineStatus, statuses
from airflow_provider_deltaforge.control.status import status as status_of
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.storage.contract import Store

_GRACE_MAX_S = 86_400
_MAY_COPY = ("starting", "snapshotting", "paused", "blocked", "degraded")


def status(
    name: Annotated[
        str | None,
        typer.Argument(help="One pipeline, with details.", autocompletion=pipeline_names),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh every second.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what is true now, even when the driver has gone silent.

    Exits with 1 when a pipeline shown is failed or lost.
    """
    backend = backend_of(store)
    with opened(store) as state:
        shown = _look(state, name, backend)
        if as_json:
            facts = [pipeline.as_dict() | _copying(state, pipeline) for pipeline in shown]
            typer.echo(json.dumps(facts, indent=2))
        elif watch:
            with Live(_view(state, shown, name), console=out, auto_refresh=False) as live:
                while True:
                    time.sleep(1)
                    live.update(_view(state, _look(state, name, backend), name), refresh=True)
        else:
            out.print(_view(state, shown, name))
    if any(pipeline.status in {"failed", "lost"} for pipeline in shown):
        raise typer.Exit(FAILED)


def pause(name: NameArgument, store: StoreOption = DEFAULT_STORE) -> None:
    """Deliver what is in flight, then hold; the driver stays up."""
    with opened(store) as state:
        pipelines.pause(state, name)
    out.print(f"asked {name} to pause")


def resume(name: NameArgument, store: StoreOption = DEFAULT_STORE) -> None:
    """Resume a paused pipeline."""
    with opened(store) as state:
        pipelines.resume(state, name)
    out.print(f"asked {name} to resume")


def stop(
    name: NameArgument,
    store: StoreOption = DEFAULT_STORE,
    grace: Annotated[
        float, typer.Option(help="Seconds the driver may take to deliver what it holds.")
    ] = pipelines.STOP_GRACE_S,
) -> None:
    """Deliver what is in flight, then end the driver; returns when it is gone."""
    if not 0 <= grace <= _GRACE_MAX_S:  # Nor is it one that is not a number.
        raise SpecError(f"--grace: write seconds from 0 to {_GRACE_MAX_S}, not {grace}")
    with opened(store) as state:
        pipelines.stop(state, name, backend_of(store), grace)
    out.print(f"{name} is stopped")


def delete(
    name: NameArgument,
    confirm: Annotated[str, typer.Option(help="The pipeline's name, once more.")],
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Stop a pipeline, and forget its document, positions and dead letters.

    What was delivered stays where it is, and so do a replication slot and the source's tables.
    """
    if confirm != name:
        raise SpecError(f"--confirm: to delete {name!r}, repeat its name, not {confirm!r}")
    with opened(store) as state:
        pipelines.delete(state, name, backend_of(store))
    out.print(f"{name} is deleted")


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    for command in (status, pause, resume, stop, delete):
        app.command(rich_help_panel="Running pipelines")(command)


def _look(state: Store, name: str | None, backend: LaunchBackends) -> list[PipelineStatus]:
    return [status_of(state, name, backend)] if name else statuses(state, backend)


def _view(state: Store, shown: list[PipelineStatus], name: str | None) -> RenderableType:
    if name is None:
        return pipelines_table(shown)
    copies = [copy_table(progress) for progress in _copying(state, shown[0]).values()]
    return Group(pipeline_details(shown[0]), *copies)


def _copying(state: Store, pipeline: PipelineStatus) -> dict[str, Any]:
    """Return how far a pipeline's copy is, while there is one."""
    if pipeline.status not in _MAY_COPY:
        return {}
    progress = snapshots.running_copy(state, pipeline.name)
    return {} if progress is None else {"snapshot": progress}
