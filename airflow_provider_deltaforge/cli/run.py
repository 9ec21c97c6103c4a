"""``deltaforge run``: apply a document, start its driver and stay with it."""

import os
import signal
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.text import Text

from airflow_provider_deltaforge.api.health import serving
from airflow_provider_deltaforge.cli.exit_codes import FAILED, RETRY, driver_exit_code
from airflow_provider_deltaforge.cli.options import (
    GivenStoreOption,
    MasterOption,
    backend_of,
    chosen_store,
    err,
    opened,
)
from airflow_provider_deltaforge.cli.views import coloured
from airflow_provider_deltaforge.control import pipelines, starting
from airflow_provider_deltaforge.control.attend import Attendance, attend, settle
from airflow_provider_deltaforge.control.launch import Job
from airflow_provider_deltaforge.control.launch_local import LocalBackend
from airflow_provider_deltaforge.control.status import PipelineStatus, status
from airflow_provider_deltaforge.control.supervise import DRAINED, Verdict
from airflow_provider_deltaforge.engine.patience import patiently
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.telemetry.redaction import redacted

Result = TypeVar("Result")

_STANDBY_POLL_S = 2.0


def run(
    file: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, help="Pipeline document (YAML).")
    ],
    store: GivenStoreOption = None,
    master: MasterOption = "local[*]",
    local: Annotated[
        bool, typer.Option("--local", help="Run in this process, without Spark.")
    ] = False,
    standby: Annotated[
        bool, typer.Option("--standby", help="Wait while another driver runs; then take over.")
    ] = False,
    api_addr: Annotated[
        str, typer.Option(help="Serve /healthz, /readyz and /metrics here; `off` for none.")
    ] = "127.0.0.1:8080",
) -> None:
    """Run a pipeline until Ctrl-C, restarting its driver with backoff when it dies.

    Ctrl-C delivers what is in flight and stops the pipeline. A driver that already runs the same
    document is adopted, not doubled.
    """
    text = file.read_text()
    dsn = chosen_store(text, store)
    backend = backend_of(dsn)
    with opened(dsn) as state, _stop_signals() as stopping:
        name = pipelines.apply(state, text).name
        with _health(state, name, backend, api_addr):
            if standby and not _wait_for_turn(state, name, backend, stopping):
                return
            if local:
                verdict = _run_lane(state, dsn, name, stopping)
            else:
                job = Job(name, 0, "stream_job.py", dsn, master)
                verdict = _run_driver(state, job, backend, stopping)
    _tell(name, verdict)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(rich_help_panel="Running pipelines")(run)


def owner_token() -> str:
    """Return a token that names this supervisor and no other."""
    return f"cli:{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"


def _run_driver(
    state: Store, job: Job, backend: LocalBackend, stopping: threading.Event
) -> Verdict:
    owner = owner_token()
    started = starting.start(state, job, backend, owner, resume=True)
    job = Job(job.pipeline, started.generation, job.script, job.store, job.master)
    word = "adopted" if started.adopted else "started"
    err.print(f"{word} {job.name}; its log: {backend.links(started.handle)['driver log']}")
    task = Attendance(state, backend, job, owner)
    verdict = attend(
        task,
        stopping=stopping.is_set,
        changed=_reporter(),
        sleep=lambda seconds: _wait(stopping, seconds),
    )
    if stopping.is_set():
        err.print("stopping: delivering what is in flight …")
        pipelines.stop(state, job.pipeline, backend)
        return Verdict("finished", "stopped as asked")
    if verdict.action == "give_up":
        tail = redacted(backend.logs_tail(started.handle, 15))
        err.print(tail, highlight=False)
    return verdict


def _run_lane(state: Store, store: str, name: str, stopping: threading.Event) -> Verdict:
    """Run the lane here; a signal asks it, through the record, to drain."""
    from airflow_provider_deltaforge.engine.local import run_local
    from airflow_provider_deltaforge.storage.location import StoreLocation

    owner = owner_token()
    generation = starting.take_generation(state, name, owner)
    job = Job(name, generation, "local", store)
    task = Attendance(state, backend_of(store), job, owner)
    done = threading.Event()
    watcher = threading.Thread(
        target=_pass_on_stop, args=(state, name, stopping, done), daemon=True, name="stop"
    )
    watcher.start()
    try:
        while True:
            code = run_local(name, StoreLocation.from_dsn(store), generation)
            verdict = _patiently(partial(settle, task, code), stopping)
            if verdict.action != "restart" or stopping.is_set():
                return verdict
            err.print(f"restarting in {verdict.wait_s:.0f} s: {verdict.reason}")
            _wait(stopping, verdict.wait_s)
            starting.count_restart(state, name, generation, owner)
    finally:
        done.set()
        watcher.join(1)


def _pass_on_stop(
    state: Store, name: str, stopping: threading.Event, done: threading.Event
) -> None:
    while not done.is_set():
        if stopping.wait(0.2):
            try:
                pipelines.ask_to_stop(state, name)
            except RetryableError:
                continue  # The store is away; the lane would not see the wish either.
            return


def _wait_for_turn(
    state: Store, name: str, backend: LocalBackend, stopping: threading.Event
) -> bool:
    """Return true when no driver lives any more, false when asked to leave first."""
    said = False
    while not stopping.is_set():
        try:
            present = _patiently(partial(status, state, name, backend), stopping)
        except RetryableError:
            continue  # Asked to leave while the store is away.
        if not present.alive:
            return True
        if not said:
            err.print(f"standby: {name} is {present.status}, generation {present.generation}")
            said = True
        stopping.wait(_STANDBY_POLL_S)
    return False


def _reporter() -> Callable[[PipelineStatus], None]:
    last: list[tuple[str, str | None]] = []

    def report(present: PipelineStatus) -> None:
        told = (present.status, present.error_class)
        if last != [told]:
            last[:] = [told]
            err.print(present.name, "is", coloured(present.status), present.reason or "")

    return report


@contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """Turn SIGINT and SIGTERM into an event while the block runs; a second SIGINT interrupts."""
    stopping = threading.Event()

    def handle(number: int, _: object) -> None:
        if stopping.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stopping.set()

    former = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _health(
    state: Store, name: str, backend: LocalBackend, api_addr: str
) -> AbstractContextManager[object]:
    if api_addr == "off":
        return nullcontext()
    return serving(lambda: [status(state, name, backend)], api_addr)


def _patiently(call: Callable[[], Result], stopping: threading.Event) -> Result:
    """Repeat a call to the store: while it is away nothing is known, so nothing is decided."""

    def tell(error: BaseException | None) -> None:
        told = "goes on" if error is None else redacted(str(error))
        err.print(f"state store: {told}", highlight=False)

    return patiently(call, tell, stopping.is_set, stopping.wait)


def _wait(stopping: threading.Event, seconds: float) -> None:
    stopping.wait(seconds)


def _tell(name: str, verdict: Verdict) -> None:
    if verdict.action == "finished":
        err.print(f"{name}: {verdict.reason}", highlight=False)
        return
    word = verdict.error_class or "failed"
    err.print(Text(word, "bold red"), end=f": {name}: ")
    err.print(verdict.reason, highlight=False)
    codes = {"spec": driver_exit_code(2), "retryable": RETRY}
    raise typer.Exit(codes.get(word, FAILED if word else DRAINED))
