"""``deltaforge snapshot``: copy the tables once, with a bar per table."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from airflow_provider_deltaforge.cli.exit_codes import FAILED, driver_exit_code
from airflow_provider_deltaforge.cli.options import (
    GivenStoreOption,
    MasterOption,
    backend_of,
    chosen_store,
    err,
    opened,
    out,
)
from airflow_provider_deltaforge.cli.run import owner_token
from airflow_provider_deltaforge.control import pipelines, snapshots
from airflow_provider_deltaforge.control.launch import Handle, Job, JobState
from airflow_provider_deltaforge.control.launch_local import LocalBackend
from airflow_provider_deltaforge.storage.contract import Store

_POLL_S = 0.5


def snapshot(
    file: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, help="Pipeline document (YAML).")
    ],
    store: GivenStoreOption = None,
    master: MasterOption = "local[*]",
    tables: Annotated[
        str, typer.Option(help="Copy only these: db.table,db.other. Default: all captured.")
    ] = "",
    where: Annotated[
        str | None, typer.Option(help="SQL condition on the rows; needs exactly one table.")
    ] = None,
) -> None:
    """Copy the captured tables once; goes on where an interrupted snapshot ended.

    Ctrl-C stops it; run the command again to go on with the chunks that are missing.
    """
    wish = snapshots.Wish(tuple(filter(None, tables.split(","))), where)
    text = file.read_text()
    dsn = chosen_store(text, store)
    backend = backend_of(dsn)
    with opened(dsn) as state:
        name = pipelines.apply(state, text).name
        if snapshots.is_done(state, name, wish):
            out.print(f"the snapshot of {name} is already done")
            return
        job = Job(name, 0, snapshots.SCRIPT, dsn, master, wish.arguments())
        # A run that goes on keeps its id; a finished one's counts are not the new one's.
        former = snapshots.progress(state, name) or {}
        hidden = former["run"] if former.get("finished") else None
        started = snapshots.start(state, job, backend, owner_token())
        err.print(f"log: {backend.links(started.handle)['driver log']}")
        try:
            code = _show_until_ended(state, name, backend, started.handle, hidden)
        except KeyboardInterrupt:
            err.print("stopping …")
            pipelines.stop(state, name, backend)
            raise
        counts = snapshots.progress(state, name) or {}
        # The chunks in the store are the truth: a driver that was asked to stop exits with 0 too.
        if code == 0 and (not counts.get("finished") or counts["run"] == hidden):
            err.print(
                f"the snapshot of {name} is not finished: it was stopped, or its mode is never"
            )
            raise typer.Exit(FAILED)
        if code != 0:
            err.print(backend.logs_tail(started.handle, 15), markup=False, highlight=False)
            raise typer.Exit(driver_exit_code(code))
    out.print(f"snapshot of {name} done")


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(rich_help_panel="Running pipelines")(snapshot)


def _show_until_ended(
    state: Store, name: str, backend: LocalBackend, handle: Handle, hidden: str | None
) -> int | None:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("chunks, {task.fields[rows]:,} rows"),
    )
    with Progress(*columns, console=out) as bars:
        shown: dict[str, TaskID] = {}
        while True:
            job = backend.status(handle)
            counts = snapshots.progress(state, name)
            if counts is not None and counts["run"] != hidden:
                _draw(bars, shown, counts)
            if job.state is JobState.ENDED:
                return job.exit_code
            time.sleep(_POLL_S)


def _draw(bars: Progress, shown: dict[str, TaskID], counts: Mapping[str, Any]) -> None:
    for table, told in counts["tables"].items():
        if table not in shown:
            shown[table] = bars.add_task(table, total=told["chunks"], rows=0)
        bars.update(
            shown[table], total=told["chunks"], completed=told["chunks_done"], rows=told["rows"]
        )
