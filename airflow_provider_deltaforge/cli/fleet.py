"""``deltaforge fleet``: the pipelines of a folder in one process, or in one Spark application."""

import logging
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from airflow_provider_deltaforge.api.context import ApiContext, Elsewhere
from airflow_provider_deltaforge.api.server import check_address
from airflow_provider_deltaforge.cli.options import (
    API_ADDR,
    LOCAL,
    METRICS_ADDR,
    GivenStoreOption,
    LogFormatOption,
    MasterOption,
    common_store,
    err,
    log_as,
    opened,
)
from airflow_provider_deltaforge.cli.rest import (
    Access,
    CorsOption,
    NoAuthOption,
    fleet_metrics,
    say_without_tokens,
    serving_fleet,
)
from airflow_provider_deltaforge.cli.shutdown import stop_signals
from airflow_provider_deltaforge.cli.views import coloured
from airflow_provider_deltaforge.control.document_folder import DocumentFolder
from airflow_provider_deltaforge.control.fleet import FLEET, Fleet
from airflow_provider_deltaforge.control.fleet_keeper import FleetKeeper
from airflow_provider_deltaforge.control.fleet_presence import FleetPresence
from airflow_provider_deltaforge.control.launching import spark_submit, threads
from airflow_provider_deltaforge.control.launching.backends import LaunchBackends
from airflow_provider_deltaforge.control.launching.contract import LaunchSpec
from airflow_provider_deltaforge.control.launching.local import jobs_directory
from airflow_provider_deltaforge.control.launching.threads import Drive, ThreadBackend
from airflow_provider_deltaforge.control.status import PipelineStatus
from airflow_provider_deltaforge.errors import RetryableError, SpecError
from airflow_provider_deltaforge.spec.load import documents_at, load, read_document
from airflow_provider_deltaforge.storage import distress
from airflow_provider_deltaforge.storage.location import JOB, StoreLocation
from airflow_provider_deltaforge.telemetry.otlp import pushing
from airflow_provider_deltaforge.telemetry.redaction import redacted

if TYPE_CHECKING:
    from airflow_provider_deltaforge.engine.spark.shared import SharedApplication

_DRAIN_S = 18.0
"""How long drivers may take to end, with what follows within ``shutdown.LIMIT_S``."""
_TICK_S = 1.0

_log = logging.getLogger(__name__)

_DOCUMENTS = Elsewhere(
    documents="`deltaforge fleet` keeps to the documents of its folder: put it there, or change it "
    "there",
    starts="start `deltaforge fleet` again",
)


def fleet(  # noqa: PLR0917 - a command's options
    documents: Annotated[
        list[Path],
        typer.Argument(exists=True, help="Folders of pipeline documents (YAML), or documents."),
    ],
    store: GivenStoreOption = None,
    master: MasterOption = "local[64]",
    local: Annotated[
        bool, typer.Option("--local", envvar=LOCAL, help="Without Spark, in this process.")
    ] = False,
    api_addr: Annotated[
        str,
        typer.Option(envvar=API_ADDR, help="Serve the page and the REST API here; `off` for none."),
    ] = "127.0.0.1:8080",
    metrics_addr: Annotated[
        str,
        typer.Option(
            envvar=METRICS_ADDR,
            help="Serve /metrics here as well, for the same tokens; `off` for none.",
        ),
    ] = "off",
    log_format: LogFormatOption = None,
    no_auth: NoAuthOption = False,
    cors_origin: CorsOption = None,
    name: Annotated[
        str | None, typer.Option(hidden=True, help="Of the record of a supervised fleet.")
    ] = None,
    generation: Annotated[int, typer.Option(hidden=True, help="Of that record.")] = 0,
) -> None:
    """Run all pipelines of a folder in one Spark application, or with --local in one process.

    The folder is watched: a document that is added starts, one that changes is replaced, one that
    is taken away is stopped, and none of this touches the others. A pipeline that fails is
    restarted alone. Ctrl-C ends all in order, and the next `fleet` on the same store goes on.
    See docs/deployment.md.
    """
    log_as(log_format, "info")
    dsn = common_store(_texts(documents), store)
    if not local:
        spark_submit.check_master(master, dsn)
    access = Access(api_addr, no_auth, cors_origin or ())
    for option, address in (("--api-addr", api_addr), ("--metrics-addr", metrics_addr)):
        if address != "off":
            check_address(address, option)
    access.check(metrics_addr)
    location = StoreLocation.from_dsn(dsn)
    with opened(dsn, create=True) as state:
        if not no_auth and api_addr != "off":
            say_without_tokens(state)
    with ExitStack() as ending:
        presence = ending.enter_context(_presence(location, name, generation))
        application = None if local else _application(master, location, documents)
        if application is not None:
            ending.callback(application.close)
        stopping = ending.enter_context(stop_signals())
        run = _Run(documents, dsn, master, access, metrics_addr, application, presence, stopping)
        _keep_until_asked(run)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(rich_help_panel="Running pipelines")(fleet)


@dataclass(frozen=True, slots=True)
class _Run:
    """What a fleet is made of.

    Attributes:
        presence: of one that a supervisor has started; what it says goes to its log then.
        stopping: set by a signal.
    """

    documents: Sequence[Path]
    dsn: str
    master: str
    access: Access
    metrics_addr: str
    application: "SharedApplication | None"
    presence: FleetPresence | None
    stopping: threading.Event

    @property
    def is_over(self) -> bool:
        """Return whether somebody asks the fleet to end."""
        asked = self.presence is not None and self.presence.leaving.is_set()
        return asked or self.stopping.is_set()

    def say(self, words: str) -> None:
        """Tell whoever watches."""
        if self.presence is not None:
            _log.info("%s", words)
        else:
            err.print(words, highlight=False)

    def report(self, name: str, words: str) -> None:
        """Tell of a pipeline."""
        self.say(f"{name}: {words}")

    def report_refused(self, file: Path, reason: str) -> None:
        """Tell of a document."""
        self.say(f"{file} is not used: {redacted(reason)}")

    def report_status(self, present: PipelineStatus) -> None:
        """Tell how a pipeline is."""
        if self.presence is not None:
            self.say(f"{present.name} is {present.words}")
        else:
            err.print(present.name, "is", coloured(present.status), present.reason or "")


@contextmanager
def _presence(
    location: StoreLocation, name: str | None, generation: int
) -> Iterator[FleetPresence | None]:
    """Have a fleet that a supervisor has started speak and listen while the block runs."""
    if name is None:
        yield None
        return
    # What lanes log and lock is each pipeline's own, not this job's.
    for variable in (JOB, distress.JOB_DIRECTORY):
        os.environ.pop(variable, None)
    with FleetPresence.of(location, name, generation) as presence:
        yield presence


def _keep_until_asked(run: _Run) -> None:
    """Keep the pipelines until somebody asks to leave.

    Raises:
        RetryableError: Spark's JVM has ended.
    """
    location, application = StoreLocation.from_dsn(run.dsn), run.application
    drive = _here(location) if application is None else partial(_drive, application)
    drivers = ThreadBackend(jobs_directory(run.dsn), drive, _DRAIN_S)
    backend = replace(LaunchBackends.of_store(run.dsn), threads=drivers, chosen=threads.NAME)
    job = LaunchSpec("", 0, threads.SCRIPT, run.dsn, run.master)
    admit = application.places.check if application is not None else lambda _: None
    kept = Fleet(location, backend, job, run.report_status, kind=FLEET, admit=admit)
    folder = DocumentFolder(run.documents, run.report_refused)
    keeper = FleetKeeper(kept, folder, location, backend, run.report)
    context = ApiContext(
        partial(opened, run.dsn),
        backend,
        kept,
        run.access.authority(run.dsn),
        elsewhere=_DOCUMENTS,
    )
    with _serving(context, run.access, run.metrics_addr), pushing(fleet_metrics(context)):
        try:
            _keep(run, keeper)
        finally:
            run.say("ending the drivers: they deliver what is in flight …")
            for name in kept.close(_DRAIN_S):
                run.say(f"{name} did not end in time")
            drivers.leave(1.0)


def _keep(run: _Run, keeper: FleetKeeper) -> None:
    shown = ""
    while not run.is_over:
        try:
            keeper.tick()
            shown = ""
        except SpecError as error:  # What runs goes on.
            if shown != str(error):
                shown = str(error)
                run.say(f"{redacted(shown)}; what runs goes on")
        if run.presence is not None:
            run.presence.show(keeper.contents)
        if run.application is not None and not run.application.is_alive():
            raise RetryableError(
                "Spark's JVM is gone, and every lane with it; start the fleet again"
            )
        run.stopping.wait(_TICK_S)


def _application(
    master: str, location: StoreLocation, documents: Iterable[Path]
) -> "SharedApplication":
    try:
        from airflow_provider_deltaforge.engine.spark.shared import SharedApplication
    except ImportError as error:
        raise SpecError(
            "running on Spark needs airflow-provider-deltaforge[spark]; or pass --local"
        ) from error
    os.environ["JDK_JAVA_OPTIONS"] = spark_submit.java_options()
    sources = []
    for text in _texts(documents):
        with suppress(SpecError):
            source = load(text, expand=False).spec.source
            sources.append(type(source).__module__.rpartition(".")[0])
    return SharedApplication(master, location, spark_submit.configuration(master), sources)


def _drive(application: "SharedApplication", job: LaunchSpec, leaving: threading.Event) -> int:
    return application.drive(job.pipeline, job.generation, leaving)


def _here(location: StoreLocation) -> Drive:
    """Return what runs a driver, and its lane, in a thread of this process."""
    from airflow_provider_deltaforge.engine.base.process_memory import stay_lean
    from airflow_provider_deltaforge.engine.driver.driver import DriverArguments, drive_stream
    from airflow_provider_deltaforge.engine.driver.local import LocalRunner

    stay_lean()  # Once, and before the first thread: it hides pandas for a moment.

    def drive(job: LaunchSpec, leaving: threading.Event) -> int:
        assignment = DriverArguments(job.pipeline, location, job.generation, leaving=leaving)
        return drive_stream(assignment, LocalRunner()).exit_code

    return drive


@contextmanager
def _serving(context: ApiContext, access: Access, metrics_addr: str) -> Iterator[None]:
    with ExitStack() as servers:
        if (access.api_addr, metrics_addr) != ("off", "off"):
            url = servers.enter_context(serving_fleet(context, access, metrics_addr))
            if url is not None:
                err.print(f"the page and the REST API are at {url}", highlight=False)
        err.print("Ctrl-C ends the pipelines in order", highlight=False)
        yield


def _texts(documents: Iterable[Path]) -> Iterator[str]:
    """Yield what can be read; the rest is refused when it is looked at again."""
    for path in documents:
        for file in documents_at(path):
            with suppress(SpecError):
                yield read_document(file)
