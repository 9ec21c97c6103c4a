"""``deltaforge snapshot``: copy tables, with a bar per table."""

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
from airflow_provider_deltaforge.control.due import why_not_due
from airflow_provider_deltaforge.control.launch import Backend, Job, JobState
from airflow_provider_deltaforge.control.starting import Started
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.control.supervise import SPEC, Silence
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.telemetry.redaction import redacted

_POLL_S = 0.5
_PATIENCE_S = 180.0
"""How long a stream's driver may be gone before this command starts a job itself."""


def snapshot(
    file: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, help="Pipeline document (YAML).")
    ],
    store: GivenStoreOption = None,
    master: MasterOption = "local[*]",
    tables: Annotated[
        str, typer.Option(help="Copy these (again): db.table,db.other. Also beside a stream.")
    ] = "",
    where: Annotated[
        str | None, typer.Option(help="SQL condition on the rows; needs exactly one table.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Copy all captured tables again, also beside a stream.")
    ] = False,
) -> None:
    """Take the pipeline's snapshot, or copy some tables again while it streams.

    Without --tables and --again: the initial snapshot; goes on where an interrupted one ended, and
    Ctrl-C stops it. With them: a request, which the running driver serves before it goes on
    streaming, or a job without one; Ctrl-C withdraws it.
    """
    wish = snapshots.Wish.of(tables, where)
    text = file.read_text()
    dsn = chosen_store(text, store)
    with opened(dsn) as state:
        name = pipelines.apply(state, text).name
        job = Job(name, 0, snapshots.SCRIPT, dsn, master)
        task = _Task(state, job, backend_of(dsn), owner_token())
        if wish.tables or again:
            task.copy(wish)
        elif snapshots.is_done(state, name):
            out.print(f"the snapshot of {name} is already done")
            return
        elif reason := why_not_due(state, name, expand=True):
            raise SpecError(
                f"no snapshot of {name!r} is due: {reason}; copy all the same with --again, or "
                "some tables with --tables"
            )
        else:
            task.take_own()
    out.print(f"snapshot of {name} done")


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(rich_help_panel="Running pipelines")(snapshot)


@dataclass
class _Task:
    """One call of the command."""

    state: Store
    job: Job
    backend: Backend
    owner: str
    started: Started | None = None

    @property
    def name(self) -> str:
        return self.job.pipeline

    def take_own(self) -> None:
        """Take the pipeline's own snapshot, or watch the stream's driver take it."""
        self._start()
        try:
            code = self._show_own()
            if self.started is None and not snapshots.is_done(self.state, self.name):
                self._start(force=True)
                code = self._show_own()
        except KeyboardInterrupt:
            if self.started is not None:
                err.print("stopping …")
                pipelines.stop(self.state, self.name, self.backend)
            raise
        # The chunks in the store are the truth: a driver that was asked to stop exits with 0 too.
        if not snapshots.is_done(self.state, self.name):
            self._not_finished(code)

    def copy(self, wish: snapshots.Wish) -> None:
        """Ask for a copy, see to it that somebody makes it, and wait."""
        request_id = f"cli:{uuid.uuid4().hex[:12]}"
        snapshots.request(self.state, self.name, wish, request_id, self.owner)

        def ask() -> snapshots.RequestState | None:
            return snapshots.request_state(self.state, self.name, request_id)

        def over() -> bool:
            now = ask()
            return now is None or now.settled

        try:
            self._serve()
            code = self._show(over, lambda: _counts(ask()))
            if self.started is None and not over():
                self._serve(force=True)
                code = self._show(over, lambda: _counts(ask()))
        except KeyboardInterrupt:
            err.print("withdrawing the request; the pipeline goes on …")
            snapshots.cancel(self.state, self.name, request_id, "withdrawn with Ctrl-C")
            raise
        ended = ask()
        if ended is None or not ended.settled:
            reason = "the command that asked for it has given up"
            snapshots.cancel(self.state, self.name, request_id, reason)
            self._not_finished(code)
        elif ended.state != "done":
            err.print(f"{ended.state}: {ended.reason}", highlight=False)
            raise typer.Exit(driver_exit_code(SPEC) if ended.error_class == "spec" else FAILED)

    def _start(self, *, force: bool = False) -> None:
        self._tell(snapshots.start(self.state, self.job, self.backend, self.owner, force=force))

    def _show_own(self) -> int | None:
        return self._show(
            lambda: snapshots.is_done(self.state, self.name),
            lambda: snapshots.progress(self.state, self.name),
        )

    def _serve(self, *, force: bool = False) -> None:
        told = (self.state, self.job, self.backend, self.owner)
        self._tell(snapshots.serve(*told, force=force))

    def _tell(self, started: Started | None) -> None:
        self.started = started
        if started is None:
            word = status(self.state, self.name, self.backend).status
            err.print(f"the driver of {self.name}, which is {word}, makes the copy")
        else:
            err.print(f"log: {self.backend.links(started.handle)['driver log']}")

    def _show(
        self, over: Callable[[], bool], counts: Callable[[], Mapping[str, Any] | None]
    ) -> int | None:
        """Draw until it is over, or until our job ended; return the job's exit code."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("chunks, {task.fields[rows]:,} rows"),
        )
        gone = Silence(_PATIENCE_S)
        with Progress(*columns, console=out) as bars:
            shown: dict[str, TaskID] = {}
            while True:
                # Looked at before the job, whose last act is to settle it.
                done = over()
                _draw(bars, shown, counts() or {})
                if done:
                    return None
                if self.started is None:
                    present = status(self.state, self.name, self.backend)
                    if gone.too_long(lost=not present.alive):
                        return None
                else:
                    job = self.backend.status(self.started.handle)
                    if job.state is JobState.ENDED:
                        _draw(bars, shown, counts() or {})
                        return job.exit_code
                time.sleep(_POLL_S)

    def _not_finished(self, code: int | None) -> None:
        err.print(
            f"the snapshot of {self.name} is not finished: its driver was stopped or has died"
        )
        if self.started is None or code == 0:
            raise typer.Exit(FAILED)
        tail = redacted(self.backend.logs_tail(self.started.handle, 15))
        err.print(tail, highlight=False)
        raise typer.Exit(driver_exit_code(code))


def _counts(state: snapshots.RequestState | None) -> Mapping[str, Any] | None:
    """Return a request's counts in the shape of a run's."""
    if state is None:
        return None
    tables = {
        name: {**told, "chunks_done": told.get("chunks_done", told["chunks"])}
        for name, told in state.copied.items()
    }
    return {"tables": tables}


def _draw(bars: Progress, shown: dict[str, TaskID], counts: Mapping[str, Any]) -> None:
    for table, told in counts.get("tables", {}).items():
        if table not in shown:
            shown[table] = bars.add_task(table, total=told["chunks"], rows=0)
        bars.update(
            shown[table], total=told["chunks"], completed=told["chunks_done"], rows=told["rows"]
        )
