"""``deltaforge snapshot``: copy tables, with a bar per table."""

import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from airflow_provider_deltaforge.cli.exit_codes import FAILED, RETRY, driver_exit_code
from airflow_provider_deltaforge.cli.options import (
    GivenStoreOption,
    MasterOption,
    Pauses,
    backend_of,
    chosen_store,
    err,
    opened,
    out,
    owner_token,
)
from airflow_provider_deltaforge.cli.views import copied_rows, duration_text, size_text
from airflow_provider_deltaforge.control import pipelines, snapshots
from airflow_provider_deltaforge.control.launching.contract import Backend, JobState, LaunchSpec
from airflow_provider_deltaforge.control.launching.spark_submit import check_master
from airflow_provider_deltaforge.control.snapshots import why_not_due
from airflow_provider_deltaforge.control.starting import Started
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.control.supervise import SPEC, HangDetector
from airflow_provider_deltaforge.errors import RetryableError, SpecError
from airflow_provider_deltaforge.spec.load import read_document
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.telemetry.redaction import redacted

_POLL_S = 0.5
_DRAIN_S = 12.0
"""How long our driver may take to end by itself; killing it takes ten seconds more at most."""
_ASK_S, _ASK_AGAIN_S = 5.0, 0.5


def snapshot(
    context: typer.Context,
    file: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, help="Pipeline document (YAML).")
    ],
    store: GivenStoreOption = None,
    master: MasterOption = "local[*]",
    tables: Annotated[
        str | None,
        typer.Option(help="Copy these (again): db.table,db.other. Also beside a stream."),
    ] = None,
    where: Annotated[
        str | None, typer.Option(help="SQL condition on the rows; needs exactly one table.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Copy all captured tables again, also beside a stream.")
    ] = False,
) -> None:
    """Take the pipeline's snapshot, or copy some tables again while it streams.

    Without --tables and --again: the initial snapshot; goes on where an interrupted one ended.
    With them: a request, which the running driver serves before it goes on streaming, or a job
    without one. Ctrl-C and SIGTERM end what this command started, within 25 seconds, and withdraw
    the request; the exit code is 3 then, or 1 if the driver could not be ended.
    """
    for option, text in (("tables", tables), ("where", where)):
        if text is not None and not text.strip(" ,"):  # A variable that was never set, perhaps.
            raise SpecError(f"{option}: --{option} is empty; leave it out to copy everything")
    wish = snapshots.CopySelection.of(tables, where)
    text = read_document(file)
    dsn = chosen_store(text, store)
    check_master(master, dsn)
    with opened(dsn, create=True) as state, _interrupts() as interrupts:
        name = pipelines.apply(state, text).name
        job = LaunchSpec(name, 0, snapshots.SCRIPT, dsn, master)
        task = _SnapshotCommand(
            state, job, backend_of(dsn), owner_token(), interrupts, Pauses.of(context)
        )
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


class _Interrupts:
    """Turns SIGINT and SIGTERM into KeyboardInterrupt; they wait while a driver is being started.

    Raised between the driver's start and the note of it, nobody could end the driver.
    """

    def __init__(self) -> None:
        self._waits, self._ignores, self._pending = False, False, False

    def handle(self, number: int, _: object) -> None:
        """Take a signal."""
        del number
        if self._waits:
            self._pending = True
        elif not self._ignores:
            raise KeyboardInterrupt

    def ignore(self) -> None:
        """Take no further signal: the end is near."""
        self._ignores = True

    @contextmanager
    def later(self) -> Iterator[None]:
        """Hold signals back until the block is left."""
        self._waits = True
        try:
            yield
        finally:
            self._waits = False
        if self._pending:
            raise KeyboardInterrupt


@contextmanager
def _interrupts() -> Iterator[_Interrupts]:
    interrupts = _Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    former = {number: signal.signal(number, interrupts.handle) for number in numbers}
    try:
        yield interrupts
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


@dataclass
class _SnapshotCommand:
    """One call of the command."""

    state: Store
    job: LaunchSpec
    backend: Backend
    owner: str
    interrupts: _Interrupts = field(default_factory=_Interrupts)
    pauses: Pauses = field(default_factory=Pauses)
    started: Started | None = None

    @property
    def name(self) -> str:
        return self.job.pipeline

    def take_own(self) -> None:
        """Take the pipeline's own snapshot, or watch the stream's driver take it."""
        try:
            self._start()
            code = self._show_own()
            if self.started is None and not snapshots.is_done(self.state, self.name):
                self._start(force=True)
                code = self._show_own()
        except KeyboardInterrupt:
            self._end(lambda state: None)
        # The chunks in the store are the truth: a driver that was asked to stop exits with 0 too.
        if not snapshots.is_done(self.state, self.name):
            self._not_finished(code)

    def copy(self, wish: snapshots.CopySelection) -> None:
        """Ask for a copy, see to it that somebody makes it, and wait."""
        request_id = f"cli:{uuid.uuid4().hex[:12]}"

        def ask() -> snapshots.RequestState | None:
            return snapshots.request_state(self.state, self.name, request_id)

        def over() -> bool:
            now = ask()
            return now is None or now.settled

        try:
            snapshots.request(self.state, self.name, wish, request_id, self.owner)
            self._serve()
            code = self._show(over, lambda: _counts(ask()))
            if self.started is None and not over():
                self._serve(force=True)
                code = self._show(over, lambda: _counts(ask()))
        except KeyboardInterrupt:
            reason = "withdrawn: the command was interrupted"
            self._end(lambda state: snapshots.cancel(state, self.name, request_id, reason))
        ended = ask()
        if ended is None or not ended.settled:
            reason = "the command that asked for it has given up"
            snapshots.cancel(self.state, self.name, request_id, reason)
            self._not_finished(code)
        elif ended.state != "done":
            err.print(f"{ended.state}: {ended.reason}", highlight=False)
            raise typer.Exit(driver_exit_code(SPEC) if ended.error_class == "spec" else FAILED)
        elif ended.reason is not None:
            err.print(ended.reason, highlight=False)

    def _start(self, *, force: bool = False) -> None:
        place = (self.state, self.job, self.backend, self.owner)
        with self.interrupts.later():
            self.started = snapshots.start(*place, force=force)
        self._tell(self.started)

    def _show_own(self) -> int | None:
        return self._show(
            lambda: snapshots.is_done(self.state, self.name),
            lambda: snapshots.progress(self.state, self.name),
        )

    def _serve(self, *, force: bool = False) -> None:
        place = (self.state, self.job, self.backend, self.owner)
        with self.interrupts.later():
            self.started = snapshots.serve(*place, force=force)
        self._tell(self.started)

    def _tell(self, started: Started | None) -> None:
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
            TextColumn("chunks, {task.fields[rows]} rows, {task.fields[size]}{task.fields[left]}"),
        )
        gone, away = HangDetector(self.pauses.gone_s), False
        with Progress(*columns, console=out) as bars:
            shown: dict[str, TaskID] = {}
            while True:
                try:
                    # Looked at before the job, whose last act is to settle it.
                    done = over()
                    _draw(bars, shown, counts() or {})
                    away = False
                    if done:
                        return None
                    if self.started is None:
                        present = status(self.state, self.name, self.backend)
                        if gone.too_long(lost=not present.alive):
                            return None
                except RetryableError as error:
                    if not away:
                        err.print(redacted(f"state store: {error}"), highlight=False)
                    away = True
                if self.started is not None and not away:
                    job = self.backend.status(self.started.handle)
                    if job.state is JobState.ENDED:
                        _draw(bars, shown, counts() or {})
                        return job.exit_code
                time.sleep(_POLL_S)

    def _end(self, withdraw: Callable[[Store], object]) -> NoReturn:
        """End the driver that was started here, within 25 seconds, whatever is away; then exit.

        Args:
            withdraw: takes back what was asked for.
        """
        self.interrupts.ignore()
        started = self.started
        err.print("stopping …" if started else "withdrawing; the pipeline's own driver goes on …")
        over, is_ours = threading.Event(), started is not None

        def ask() -> None:
            nonlocal is_ours
            while not over.is_set():
                try:
                    with opened(self.job.store) as state:  # What was interrupted may hang in ours.
                        withdraw(state)
                        if is_ours:
                            stopped = pipelines.ask_to_stop_if_owner(state, self.name, self.owner)
                            is_ours = stopped is not None
                except RetryableError:
                    over.wait(_ASK_AGAIN_S)
                else:
                    return

        asking = threading.Thread(target=ask, daemon=True, name="stop")
        asking.start()
        try:
            if started is not None:
                began_s = time.monotonic()
                asking.join(_ASK_S)
                if is_ours:
                    drain_s = _DRAIN_S - (time.monotonic() - began_s)
                    self.backend.stop(started.handle, max(0.0, drain_s))
        except RetryableError as error:
            err.print(redacted(f"the driver was not ended: {error}"), highlight=False)
            raise typer.Exit(FAILED) from None
        finally:
            asking.join(_ASK_S if started is None else 0.0)
            over.set()
        if started is not None and not is_ours:
            err.print(f"interrupted; somebody else supervises the driver of {self.name} by now")
            raise typer.Exit(RETRY)
        ended = "its driver has ended; " if started is not None else ""
        err.print(f"the snapshot of {self.name} is interrupted; {ended}run it again to go on")
        raise typer.Exit(RETRY)

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
        name: {**copied, "chunks_done": copied.get("chunks_done", copied["chunks"])}
        for name, copied in state.copied.items()
    }
    return {"tables": tables}


def _draw(bars: Progress, shown: dict[str, TaskID], counts: Mapping[str, Any]) -> None:
    for table, copied in counts.get("tables", {}).items():
        if table not in shown:
            shown[table] = bars.add_task(table, total=copied["chunks"], rows="", size="", left="")
        eta_s = copied.get("eta_s")
        bars.update(
            shown[table],
            total=copied["chunks"],
            completed=copied["chunks_done"],
            rows=copied_rows(copied),
            size=size_text(copied.get("bytes", 0)),
            left=f", {duration_text(eta_s)} left" if eta_s else "",
        )
