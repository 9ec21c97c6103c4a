"""``deltaforge serve``: many pipelines and the REST API, kept running by one process."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from airflow_provider_deltaforge.api.context import ApiContext
from airflow_provider_deltaforge.api.server import check_address
from airflow_provider_deltaforge.cli.options import (
    API_ADDR,
    LOCAL,
    METRICS_ADDR,
    GivenStoreOption,
    LogFormatOption,
    MasterOption,
    chosen_store,
    common_store,
    err,
    log_as,
    opened,
    stream_script,
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
from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.control.fleet import Fleet
from airflow_provider_deltaforge.control.launching import spark_submit
from airflow_provider_deltaforge.control.launching.backends import LaunchBackends
from airflow_provider_deltaforge.control.launching.contract import LaunchSpec
from airflow_provider_deltaforge.control.launching.local import (
    LocalBackend,
    command_without_spark,
    jobs_directory,
)
from airflow_provider_deltaforge.control.launching.spark_submit import check_master
from airflow_provider_deltaforge.control.status import PipelineStatus
from airflow_provider_deltaforge.errors import RetryableError, SpecError
from airflow_provider_deltaforge.spec.load import documents_at, read_document
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.location import ENVIRONMENT, StoreLocation
from airflow_provider_deltaforge.telemetry.otlp import of_drivers, pushing
from airflow_provider_deltaforge.telemetry.redaction import redacted

_DRAIN_S = 20.0
"""How long drivers may take to end, within ``shutdown.LIMIT_S``."""


_MetricsAddrOption = Annotated[
    str,
    typer.Option(
        envvar=METRICS_ADDR,
        help="Serve /metrics here as well, for the same tokens; `off` for none.",
    ),
]


def serve(  # noqa: PLR0917 - a command's options
    documents: Annotated[
        Path | None,
        typer.Argument(exists=True, help="A pipeline document, or a folder of them."),
    ] = None,
    store: GivenStoreOption = None,
    master: MasterOption = "local[*]",
    local: Annotated[
        bool,
        typer.Option("--local", envvar=LOCAL, help="Run drivers without Spark, one process each."),
    ] = False,
    api_addr: Annotated[
        str, typer.Option(envvar=API_ADDR, help="Serve the page and the REST API here.")
    ] = "127.0.0.1:8080",
    metrics_addr: _MetricsAddrOption = "off",
    log_format: LogFormatOption = None,
    no_auth: NoAuthOption = False,
    cors_origin: CorsOption = None,
) -> None:
    """Run any number of pipelines, and steer them by a page or over REST.

    Starts every document of the folder that nobody stopped, and what ran here before. Ctrl-C ends
    the drivers in order, and the next `serve` on the same store goes on with them; a driver whose
    `serve` was killed works on, and is adopted. See docs/page.md and docs/rest.md.
    """
    log_as(log_format)
    texts = list(_texts(documents))
    store = common_store((text for _, text in texts), store)
    if not local:
        check_master(master, store)
    access = Access(api_addr, no_auth, cors_origin or ())
    check_address(api_addr)
    if metrics_addr != "off":
        check_address(metrics_addr, "--metrics-addr")
    access.check(metrics_addr)
    location = StoreLocation.from_dsn(store)
    processes = LocalBackend(
        jobs_directory(store),
        compose=command_without_spark if local else spark_submit.command,
        term_grace_s=_DRAIN_S,
    )
    backend = replace(LaunchBackends.of_store(store), local=processes)
    script = stream_script(local=local)
    job = LaunchSpec("", 0, script, store, master, environment=of_drivers())
    with opened(store, create=True) as state, stop_signals() as stopping:
        if not no_auth:
            say_without_tokens(state)
        fleet = Fleet(location, backend, job, _report)
        _start_all(fleet, state, store, texts, documents)
        context = ApiContext(partial(opened, store), backend, fleet, access.authority(store))
        with serving_fleet(context, access, metrics_addr) as url, pushing(fleet_metrics(context)):
            err.print(
                f"the page and the REST API are at {url}; Ctrl-C ends the server and the drivers",
                highlight=False,
            )
            stopping.wait()
            err.print("ending the drivers: they deliver what is in flight …")
        for name in fleet.close(_DRAIN_S):
            err.print(f"{name} did not end in time; the next `serve` adopts it", highlight=False)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(rich_help_panel="Running pipelines")(serve)


def store_of(backend: str, path: Path | None, dsn: str | None) -> str | None:
    """Return the DSN of a state store that is named as the documents name it; None if none is.

    Raises:
        SpecError: the parts do not fit, or name no store that several processes can share.
    """
    if backend == "sqlite" and dsn is None:
        return os.environ.get(ENVIRONMENT) if path is None else f"sqlite:///{path}"
    if backend == "postgres" and dsn is not None and path is None:
        return dsn
    raise SpecError(
        f"--storage-backend {backend}: write sqlite with --storage-path, or postgres with "
        "--storage-dsn; drivers are processes of their own, so that no store in memory serves"
    )


def _texts(documents: Path | None) -> Iterator[tuple[Path, str]]:
    """Yield what can be read; of a folder, one that cannot does not keep the others."""
    for file in documents_at(documents) if documents is not None else []:
        try:
            yield file, read_document(file)
        except SpecError as error:
            if file == documents:
                raise
            err.print(f"{file} is not started: {redacted(str(error))}", highlight=False)


def _start_all(
    fleet: Fleet,
    state: Store,
    store: str,
    texts: Sequence[tuple[Path, str]],
    strict: Path | None,
) -> None:
    """Start what the documents say, and what a former server kept.

    Of several documents, one that is wrong does not keep the others; only ``strict`` must be right.
    """
    for file, text in texts:
        try:
            chosen_store(text, store)  # Refuses a document that names another one.
            _start(fleet, state, text)
        except (SpecError, RetryableError) as error:
            if file == strict:
                raise
            err.print(f"{file} is not started: {redacted(str(error))}", highlight=False)
    fleet.start_wanted(state)


def _start(fleet: Fleet, state: Store, text: str) -> None:
    """Start a document's pipeline, unless somebody stopped it: that outlives this process."""
    applied = pipelines.apply(state, text)
    if applied.record.generation and applied.record.desired == "stopped":
        err.print(f"{applied.name} was stopped; `POST /pipelines/{applied.name}/resume` starts it")
    else:
        fleet.start(state, applied.name)


def _report(present: PipelineStatus) -> None:
    err.print(present.name, "is", coloured(present.status), present.reason or "")
