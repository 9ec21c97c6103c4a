"""``deltaforge fleet``: the pipelines of a folder in one process, or in one Spark application."""

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from airflow_provider_deltaforge.api.context import ApiContext, Elsewhere
from airflow_provider_deltaforge.api.server import check_address
from airflow_provider_deltaforge.cli.exit_codes import RETRY
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
from airflow_provider_deltaforge.control.launching import spark_submit, threads
from airflow_provider_deltaforge.control.launching.backends import LaunchBackends
from airflow_provider_deltaforge.control.launching.contract import LaunchSpec
from airflow_provider_deltaforge.control.launching.local import jobs_directory
from airflow_provider_deltaforge.control.launching.threads import Drive, ThreadBackend
from airflow_provider_deltaforge.control.status import PipelineStatus
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.spec.load import documents_at, load, read_document
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.telemetry.otlp import pushing
from airflow_provider_deltaforge.telemetry.redaction import redacted

if TYPE_CHECKING:
    from airflow_provider_deltaforge.engine.spark.shared import SharedApplication

_DRAIN_S = 18.0
"""How long drivers may take to end, with what follows within ``shutdown.LIMIT_S``."""
_TICK_S = 1.0

_DOCUMENTS = Elsewhere(
    documents="`deltaforge fleet` keeps to the documents of its folder: put it there, or change it "
    "there",
    starts="start `deltaforge fleet` again",
)


def fleet(  # noqa: PLR0917 - a command's options
    documents: Annotated[
        Path,
        typer.Argument(exists=True, help="A folder of pipeline documents (YAML), or one document."),
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
    access.check(metrics_addr)
    for address in {api_addr, metrics_addr} - {"off"}:
        check_address(address)
    location = StoreLocation.from_dsn(dsn)
    with opened(dsn, create=True) as state:
        if not no_auth and api_addr != "off":
            say_without_tokens(state)
    application = None if local else _application(master, location, documents)
    try:
        with stop_signals() as stopping:
            code = _kept(documents, dsn, master, application, access, metrics_addr, stopping)
    finally:
        if application is not None:
            application.close()
    raise typer.Exit(code)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(rich_help_panel="Running pipelines")(fleet)


def _kept(
    documents: Path,
    dsn: str,
    master: str,
    application: "SharedApplication | None",
    access: Access,
    metrics_addr: str,
    stopping: threading.Event,
) -> int:
    """Keep the pipelines until a signal asks to leave; return the exit code."""
    location = StoreLocation.from_dsn(dsn)
    drive = _here(location) if application is None else partial(_drive, application)
    drivers = ThreadBackend(jobs_directory(dsn), drive, _DRAIN_S)
    backend = replace(LaunchBackends.of_store(dsn), threads=drivers, chosen=threads.NAME)
    job = LaunchSpec("", 0, threads.SCRIPT, dsn, master)
    admit = application.places.check if application is not None else lambda _: None
    kept = Fleet(location, backend, job, _report_status, kind=FLEET, admit=admit)
    folder = DocumentFolder(documents, _report_refused)
    keeper = FleetKeeper(kept, folder, location, backend, _report)
    context = ApiContext(
        partial(opened, dsn), backend, kept, access.authority(dsn), elsewhere=_DOCUMENTS
    )
    with _serving(context, access, metrics_addr), pushing(fleet_metrics(context)):
        code = _keep(keeper, application, stopping)
        err.print("ending the drivers: they deliver what is in flight …")
        for name in kept.close(_DRAIN_S):
            err.print(f"{name} did not end in time", highlight=False)
        drivers.leave(1.0)
    return code


def _keep(
    keeper: FleetKeeper, application: "SharedApplication | None", stopping: threading.Event
) -> int:
    shown = ""
    while not stopping.is_set():
        try:
            keeper.tick()
            shown = ""
        except SpecError as error:  # What runs goes on.
            if shown != str(error):
                shown = str(error)
                err.print(f"{redacted(shown)}; what runs goes on", highlight=False)
        if application is not None and not application.is_alive():
            err.print(
                Text("retryable", "bold red"),
                "Spark's JVM is gone, and every lane with it; start the fleet again",
            )
            return RETRY
        stopping.wait(_TICK_S)
    return 0


def _application(master: str, location: StoreLocation, documents: Path) -> "SharedApplication":
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
        if access.api_addr != "off":
            url = servers.enter_context(serving_fleet(context, access, metrics_addr))
            err.print(f"the page and the REST API are at {url}", highlight=False)
        err.print("Ctrl-C ends the pipelines in order", highlight=False)
        yield


def _texts(documents: Path) -> Iterator[str]:
    """Yield what can be read; the rest is refused when it is looked at again."""
    for file in documents_at(documents):
        try:
            yield read_document(file)
        except SpecError:
            continue


def _report_status(present: PipelineStatus) -> None:
    err.print(present.name, "is", coloured(present.status), present.reason or "")


def _report(name: str, words: str) -> None:
    err.print(f"{name}: {words}", highlight=False)


def _report_refused(file: Path, reason: str) -> None:
    err.print(f"{file} is not used: {redacted(reason)}", highlight=False)
