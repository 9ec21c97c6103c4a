"""``deltaforge run``: apply documents, start their drivers and stay with them."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Annotated, TypeVar

import typer
from rich.text import Text

from airflow_provider_deltaforge.api.server import check_address
from airflow_provider_deltaforge.cli.exit_codes import (
    DOCUMENT,
    FAILED,
    OK,
    RETRY,
    driver_exit_code,
    exit_code,
)
from airflow_provider_deltaforge.cli.options import (
    API_ADDR,
    LOCAL,
    GivenStoreOption,
    LogFormatOption,
    MasterOption,
    backend_of,
    chosen_store,
    err,
    log_as,
    opened,
    owner_token,
    stream_script,
)
from airflow_provider_deltaforge.cli.rest import (
    Access,
    CorsOption,
    NoAuthOption,
    observed,
    run_metrics,
    serving_run,
)
from airflow_provider_deltaforge.cli.shutdown import stop_signals
from airflow_provider_deltaforge.cli.views import coloured
from airflow_provider_deltaforge.control import pipelines, starting
from airflow_provider_deltaforge.control.attend import Attendance, attend, settle
from airflow_provider_deltaforge.control.launching.backends import LaunchBackends
from airflow_provider_deltaforge.control.launching.contract import Handle, LaunchSpec
from airflow_provider_deltaforge.control.launching.local import command_without_spark
from airflow_provider_deltaforge.control.launching.spark_submit import check_master
from airflow_provider_deltaforge.control.metrics import Observed
from airflow_provider_deltaforge.control.status import PipelineStatus
from airflow_provider_deltaforge.control.supervise import DRAINED, RestartDecision
from airflow_provider_deltaforge.engine.base.retry import retry_until
from airflow_provider_deltaforge.errors import DeltaForgeError, RetryableError, SpecError
from airflow_provider_deltaforge.spec.load import documents_at, load, read_document
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.telemetry.otlp import of_drivers, pushing
from airflow_provider_deltaforge.telemetry.redaction import redacted

Result = TypeVar("Result")

_STANDBY_POLL_S = 2.0
_POLL_S = 0.2
_ASK_S = 3.0
_DRAIN_S = 8.0
"""With what follows for a driver that does not end, within ``leaving.LIMIT_S``."""


_LocalOption = Annotated[
    bool,
    typer.Option(
        "--local",
        envvar=LOCAL,
        help="Without Spark: in this process, or one process per document.",
    ),
]
_ApiAddrOption = Annotated[
    str,
    typer.Option(
        envvar=API_ADDR, help="Serve health, /metrics and the REST API here; `off` for none."
    ),
]


@dataclass(frozen=True, slots=True)
class _Settings:
    """What the command line says about every driver."""

    store: str | None
    master: str
    local: bool
    standby: bool


def run(  # noqa: PLR0917 - a command's options
    path: Annotated[
        Path,
        typer.Argument(exists=True, help="A pipeline document (YAML), or a folder of them."),
    ],
    store: GivenStoreOption = None,
    master: MasterOption = "local[*]",
    local: _LocalOption = False,
    standby: Annotated[
        bool, typer.Option("--standby", help="Wait while another driver runs; then take over.")
    ] = False,
    log_format: LogFormatOption = None,
    api_addr: _ApiAddrOption = "127.0.0.1:8080",
    no_auth: NoAuthOption = False,
    cors_origin: CorsOption = None,
) -> None:
    """Run pipelines until Ctrl-C, restarting their drivers with backoff when they die.

    Ctrl-C delivers what is in flight and stops the pipelines. A driver that already runs the same
    document is adopted, not doubled. In a folder every document has its own driver, and one that is
    wrong or fails does not stop the others: the exit code tells when the last one has ended.
    """
    settings = _Settings(store, master, local, standby)
    access = Access(api_addr, no_auth, cors_origin or ())
    access.check()
    if api_addr != "off":
        check_address(api_addr)
    if path.is_dir():
        log_as(log_format)
        raise typer.Exit(_run_folder(documents_at(path), settings, access))
    # A driver that works in this process says what it does; others have a log of their own.
    log_as(log_format, "info" if local else "warning")
    text = read_document(path)
    dsn = chosen_store(text, store)
    if not local:
        check_master(master, dsn)
    backend = backend_of(dsn)
    with opened(dsn, create=True) as state, stop_signals() as stopping:
        name = pipelines.apply(state, text).name
        observe = lambda: [observed(state, name, backend)]  # noqa: E731
        with serving_run(observe, access, dsn, backend), pushing(run_metrics(observe)):
            if standby and not _wait_for_turn(state, name, backend, stopping):
                return
            if local:
                log_as(log_format, "info", pipeline=name)
                verdict = _run_lane(state, dsn, name, backend, stopping)
            else:
                job = LaunchSpec(name, 0, stream_script(local=False), dsn, master)
                verdict = _run_driver(state, job, backend, stopping)
    if code := _tell(name, verdict):
        raise typer.Exit(code)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(rich_help_panel="Running pipelines")(run)


def _run_folder(files: Sequence[Path], settings: _Settings, access: Access) -> int:
    """Run each document's driver until all have ended; return the exit code."""
    if not files:
        raise SpecError("there is no document in this folder: *.yaml, or *.yml")
    looks: list[Callable[[], Observed]] = []
    codes: list[int] = []
    with stop_signals() as stopping:
        threads = []
        stores: set[str] = set()
        for file, text in _documents(files, codes):
            stores |= _stores_of(text, settings)
            work = partial(_run_document, file, text, settings, looks, stopping)
            thread = threading.Thread(target=lambda work=work: codes.append(work()), daemon=True)
            threads.append(thread)
        (store,) = stores if len(stores) == 1 else (None,)
        backend = backend_of(store) if store is not None else None
        observe = lambda: [look() for look in list(looks)]  # noqa: E731
        serving = serving_run(observe, access, store, backend, alone=False)
        with serving, pushing(run_metrics(observe)):
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():  # A join without end hears no signal.
                    thread.join(_POLL_S)
    return next((code for code in (FAILED, DOCUMENT, RETRY) if code in codes), OK)


def _stores_of(text: str, settings: _Settings) -> set[str]:
    with suppress(DeltaForgeError):  # Said when the document is run.
        return {chosen_store(text, settings.store)}
    return set()


def _documents(files: Sequence[Path], codes: list[int]) -> Iterator[tuple[Path, str]]:
    """Yield the documents that can be read and whose names are their own."""
    known: dict[str, Path] = {}
    for file in files:
        try:
            text = read_document(file)
            name = load(text, expand=False).name
            if (former := known.setdefault(name, file)) != file:
                raise SpecError(f"the pipeline {name!r} is already in {former}")
        except DeltaForgeError as error:
            codes.append(_refused(file, error))
            continue
        yield file, text


def _run_document(
    file: Path,
    text: str,
    settings: _Settings,
    looks: list[Callable[[], Observed]],
    stopping: threading.Event,
) -> int:
    """Run one document of a folder until its driver has ended; return its exit code."""
    try:
        dsn = chosen_store(text, settings.store)
        if not settings.local:
            check_master(settings.master, dsn)
        backend = backend_of(dsn)
        if settings.local:
            backend = replace(backend, local=replace(backend.local, compose=command_without_spark))
        with opened(dsn, create=True) as state:
            name = pipelines.apply(state, text).name
            looks.append(partial(observed, state, name, backend))
            if settings.standby and not _wait_for_turn(state, name, backend, stopping):
                return OK
            job = LaunchSpec(name, 0, stream_script(local=settings.local), dsn, settings.master)
            return _tell(name, _run_driver(state, job, backend, stopping))
    except DeltaForgeError as error:
        return _refused(file, error)


def _refused(file: Path, error: DeltaForgeError) -> int:
    err.print(Text(f"{file}: {error.error_class}", "bold red"), end=": ")
    err.print(redacted(str(error)), highlight=False)
    return exit_code(error)


def _run_driver(
    state: Store, job: LaunchSpec, backend: LaunchBackends, stopping: threading.Event
) -> RestartDecision:
    owner, job = owner_token(), replace(job, environment=of_drivers())
    started = starting.start(state, job, backend, owner, resume=True)
    job = replace(job, generation=started.generation)
    word = "adopted" if started.adopted else "started"
    err.print(f"{word} {job.name}; its log: {backend.links(started.handle)['driver log']}")
    task = Attendance(state, backend, job, owner)
    attending = _Attending(task, stopping, started.handle)
    verdict = attending.until_over()
    if stopping.is_set() or verdict is None:
        err.print("stopping: delivering what is in flight …")
        _end(task, attending.handle)
        return RestartDecision("finished", "stopped as asked")
    if verdict.action == "give_up":
        err.print(redacted(backend.logs_tail(attending.handle, 15)), highlight=False)
    return verdict


class _Attending:
    """Stays with a driver in a thread, so that nothing that is away keeps a signal waiting."""

    def __init__(self, task: Attendance, stopping: threading.Event, handle: Handle) -> None:
        self.handle = handle
        """Of the driver that was started last, as far as is known."""
        self._task, self._stopping = task, stopping
        self._report = _reporter()
        self._done: SimpleQueue[RestartDecision | BaseException] = SimpleQueue()
        threading.Thread(target=self._run, daemon=True, name="attend").start()

    def until_over(self) -> RestartDecision | None:
        """Return the verdict; None once a signal asks to leave."""
        while not self._stopping.is_set():
            with suppress(Empty):
                ended = self._done.get(timeout=_POLL_S)
                if isinstance(ended, BaseException):
                    raise ended
                return ended
        return None

    def _run(self) -> None:
        try:
            self._done.put(
                attend(
                    self._task,
                    stopping=self._stopping.is_set,
                    changed=self._changed,
                    sleep=self._rest,
                )
            )
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            self._done.put(error)

    def _rest(self, seconds: float) -> None:
        self._stopping.wait(seconds)

    def _changed(self, present: PipelineStatus) -> None:
        self.handle = present.handle or self.handle
        self._report(present)


def _end(task: Attendance, handle: Handle) -> None:
    """Stop a driver: it is asked through the store, and ended if that does not help in time.

    One that somebody else has adopted goes on.
    """
    store, name = task.store, task.job.pipeline
    asked = threading.Event()
    failed: list[DeltaForgeError] = []
    is_ours = True

    def ask() -> None:
        nonlocal is_ours
        try:
            is_ours = pipelines.ask_to_stop_if_owner(store, name, task.owner) is not None
        except DeltaForgeError as error:
            failed.append(error)
        else:
            asked.set()

    asking = threading.Thread(target=ask, daemon=True, name="ask")
    asking.start()
    asking.join(_ASK_S)
    if not asked.is_set():
        why = redacted(str(failed[0])) if failed else "the state store does not answer"
        err.print(
            f"the wish to stop could not be stored ({why}); the driver is ended now. Whoever else "
            f"supervises {name} may start it again: run `deltaforge stop {name}` when the store is "
            "back",
            highlight=False,
        )
    if not is_ours:
        err.print(f"{name} goes on: somebody else supervises it by now", highlight=False)
        return
    pipelines.end_driver(store, name, task.backend, handle, _DRAIN_S if asked.is_set() else 0.0)


def _run_lane(
    state: Store, store: str, name: str, backend: LaunchBackends, stopping: threading.Event
) -> RestartDecision:
    """Run the lane here; a signal asks it to drain."""
    from airflow_provider_deltaforge.engine.driver.local import run_local
    from airflow_provider_deltaforge.storage.location import StoreLocation

    owner = owner_token()
    with backend.local.occupied(name) as handle:
        generation = starting.take_generation(
            state,
            name,
            owner,
            handle=handle,
            backend=backend,
            tell=lambda words: err.print(f"{name} is {words}", highlight=False),
            rest=stopping.wait,
            stopping=stopping.is_set,
        )
        where = StoreLocation.from_dsn(store).shown()
        line = f"{name} runs in this process, its state in {where}; Ctrl-C ends it in order"
        err.print(line, soft_wrap=True, highlight=False)
        job = LaunchSpec(name, generation, "local", store)
        task = Attendance(state, backend, job, owner)
        done = threading.Event()
        signals = state, name, owner, stopping, done
        watcher = threading.Thread(target=_pass_on_stop, args=signals, daemon=True, name="stop")
        watcher.start()
        try:
            while True:
                code = run_local(name, StoreLocation.from_dsn(store), generation, stopping)
                if stopping.is_set():
                    return RestartDecision("finished", "stopped as asked")
                verdict = _retry(partial(settle, task, code), stopping)
                if verdict.action != "restart" or stopping.is_set():
                    return verdict
                err.print(f"restarting in {verdict.wait_s:.0f} s: {verdict.reason}")
                stopping.wait(verdict.wait_s)
                counting = partial(starting.counts_restart, state, name, generation, owner)
                if not _retry(counting, stopping):
                    return RestartDecision("finished", "taken over by another")
        finally:
            if stopping.is_set():
                watcher.join(_ASK_S)
            done.set()
            watcher.join(1)


def _pass_on_stop(
    state: Store, name: str, owner: str, stopping: threading.Event, done: threading.Event
) -> None:
    """Store the wish, for supervisors and standbys; the lane hears the signal itself."""
    while not done.is_set():
        if stopping.wait(0.2):
            try:
                pipelines.ask_to_stop_if_owner(state, name, owner)
            except RetryableError:
                time.sleep(_POLL_S)
                continue
            return


def _wait_for_turn(
    state: Store, name: str, backend: LaunchBackends, stopping: threading.Event
) -> bool:
    """Return true when no driver lives any more, false when asked to leave first."""
    is_shown = False
    while not stopping.is_set():
        try:
            present = _retry(partial(starting.holder, state, name, backend), stopping)
        except RetryableError:
            continue  # Asked to leave while the store is away.
        if present is None:
            return True
        if not is_shown:
            err.print(f"standby: {name} is {present.status}, generation {present.generation}")
            is_shown = True
        stopping.wait(_STANDBY_POLL_S)
    return False


def _reporter() -> Callable[[PipelineStatus], None]:
    last: list[tuple[str, str | None]] = []

    def report(present: PipelineStatus) -> None:
        shown = (present.status, present.error_class)
        if last != [shown]:
            last[:] = [shown]
            err.print(present.name, "is", coloured(present.status), present.reason or "")

    return report


def _retry(call: Callable[[], Result], stopping: threading.Event) -> Result:
    """Repeat a call to the store: while it is away nothing is known, so nothing is decided."""

    def tell(error: BaseException | None) -> None:
        state_text = "goes on" if error is None else redacted(str(error))
        err.print(f"state store: {state_text}", highlight=False)

    return retry_until(call, tell, stopping.is_set, stopping.wait)


def _tell(name: str, verdict: RestartDecision) -> int:
    """Print how a driver ended; return the exit code."""
    if verdict.action == "finished":
        err.print(f"{name}: {verdict.reason}", highlight=False)
        return OK
    word = verdict.error_class or "failed"
    err.print(Text(word, "bold red"), end=f": {name}: ")
    err.print(verdict.reason, highlight=False)
    codes = {"spec": driver_exit_code(2), "retryable": RETRY}
    return codes.get(word, FAILED if word else DRAINED)
