"""Options that several commands share, and what is opened from them."""

import json
import os
import socket
import threading
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from airflow_provider_deltaforge.cli.views import new_console
from airflow_provider_deltaforge.control.launching import threads
from airflow_provider_deltaforge.control.launching.backends import LaunchBackends
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.storage.choice import store_in, store_of
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.location import ENVIRONMENT, StoreLocation
from airflow_provider_deltaforge.storage.records.control import Control
from airflow_provider_deltaforge.telemetry import logs

out = new_console()
err = new_console(stderr=True)

_COMPLETION_S = 1.0

NUMBER_MAX = 2**63 - 1
"""The largest number that a state store counts with."""


@dataclass(frozen=True, slots=True)
class Pauses:
    """How long commands wait, in seconds; who runs the application in a process may hand others.

    Attributes:
        look_s: between two looks whether somebody serves what was asked for.
        gone_s: how long a stream's driver may be gone before a command does its work.
    """

    look_s: float = 5.0
    gone_s: float = 180.0

    @classmethod
    def of(cls, context: typer.Context) -> "Pauses":
        """Return what the application was called with as ``obj``, or the usual pauses."""
        return context.find_object(cls) or cls()


DEFAULT_STORE = "sqlite:///.deltaforge/state.db"

StoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="DELTAFORGE_STORE",
        help="State store: sqlite:///path, or postgresql://user:${PASSWORD}@host/db (the variable "
        "is resolved where the store is opened).",
    ),
]

GivenStoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        envvar="DELTAFORGE_STORE",
        help="State store: sqlite:///path, or postgresql://user:${PASSWORD}@host/db (the variable "
        "is resolved where the store is opened). Default: the document's spec.storage, else "
        f"{DEFAULT_STORE}.",
    ),
]

LogFormatOption = Annotated[
    str | None,
    typer.Option(
        "--log-format",
        envvar=logs.FORMAT,
        help="Log lines as text or json; levels: DELTAFORGE_LOG=warning,sinks=debug.",
    ),
]

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
TableArgument = Annotated[str | None, typer.Argument(help="One table: orders, or shop.orders.")]


def print_answer(answer: Any, view: RenderableType, *, as_json: bool) -> None:
    """Print what a command answers: as JSON for programs, or as it is shown to people."""
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
    else:
        out.print(view)


def pipeline_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the pipelines that a shell may complete a word to; none if the store is not near."""
    store = context.params.get("store") or os.environ.get(ENVIRONMENT) or DEFAULT_STORE
    found: list[str] = []

    def look() -> None:
        # Whatever is wrong, the command itself will say it: a shell waits for names only.
        with suppress(Exception), opened(str(store)) as state:
            found.extend(Control.list_pipelines(state))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(_COMPLETION_S)
    return [name for name in found if name.startswith(incomplete)]


NameArgument = Annotated[
    str,
    typer.Argument(help="Name of the pipeline (metadata.name).", autocompletion=pipeline_names),
]

API_ADDR, METRICS_ADDR, LOCAL = "DELTAFORGE_API_ADDR", "DELTAFORGE_METRICS_ADDR", threads.LOCAL
"""Variables that stand for options of ``run``, ``serve`` and ``fleet``, as images set them."""

MasterOption = Annotated[
    str, typer.Option("--master", help="Spark master: local[*], local[2], spark://host:7077.")
]


def chosen_store(document: str, dsn: str | None) -> str:
    """Return the DSN of the state store a document runs with, variables unresolved.

    Raises:
        SpecError: the document names another store than ``given``, or is wrong.
    """
    return store_of(document, StoreLocation.from_dsn(dsn) if dsn else None).to_dsn()


def common_store(documents: Iterable[str], dsn: str | None) -> str:
    """Return the DSN of the one state store of several documents.

    Args:
        documents: their texts; one that is wrong names none.
        dsn: what the command line or the environment names.

    Raises:
        SpecError: nobody names one, and the documents several.
    """
    if dsn is not None:
        return dsn
    named: dict[str, str] = {}
    for text in documents:
        with suppress(SpecError):
            if (own := store_in(text)) is not None:
                named[own.to_dsn()] = own.shown()
    if len(named) > 1:
        raise SpecError(
            f"spec.storage: the documents name several state stores ({', '.join(named.values())}), "
            "and one `serve` or `fleet` keeps one: run one for each, or `deltaforge run FOLDER`"
        )
    return next(iter(named), DEFAULT_STORE)


@contextmanager
def opened(store: str, *, create: bool = False) -> Iterator[Store]:
    """Open a state store for the block; make one where there is none only for ``create``."""
    location = StoreLocation.from_dsn(store)
    opened_store = location.create() if create else location.open()
    try:
        yield opened_store
    finally:
        opened_store.close()


def log_as(form: str | None, level: str = "warning", **fields: str) -> None:
    """Make this process, and the drivers that it starts, log in a format.

    Raises:
        SpecError: there is no such format or level.
    """
    if form is not None:
        os.environ[logs.FORMAT] = form
    logs.configure(fields, level=level)


def backend_of(store: str) -> LaunchBackends:
    """Return where the drivers of a state store run; new ones are processes of this machine."""
    return LaunchBackends.of_store(store)


def stream_script(*, local: bool) -> str:
    """Return what a stream's driver runs: a Spark application, or a process of our own."""
    return "stream_process" if local else "stream_job.py"


def owner_token() -> str:
    """Return a token that names this supervisor and no other."""
    return f"cli:{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
