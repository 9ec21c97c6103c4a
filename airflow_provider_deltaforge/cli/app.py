"""The ``deltaforge`` command."""

import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from airflow_provider_deltaforge import __version__
from airflow_provider_deltaforge.cli import (
    archive,
    backup,
    control,
    dlq,
    documents,
    driver,
    failover,
    fleet,
    image,
    log,
    precompile,
    rewind,
    run,
    schemas,
    sensing,
    serve,
    shutdown,
    sinks,
    slots,
    snapshot,
    token,
    verify,
)
from airflow_provider_deltaforge.cli.exit_codes import FAILED, exit_code
from airflow_provider_deltaforge.cli.options import API_ADDR, LOCAL, METRICS_ADDR, err
from airflow_provider_deltaforge.errors import DeltaForgeError, SpecError
from airflow_provider_deltaforge.telemetry.redaction import redacted

_SERVE = "In place of a command: deltaforge serve"
_SERVES = (
    *("storage_backend", "storage_path", "storage_dsn"),
    *("api_addr", "metrics_addr", "local"),
)

_HELP = """Change data capture from one YAML document: MySQL, MariaDB, PostgreSQL and Turso to
Kafka, Redis, NATS, webhooks and files.

Start here: `deltaforge validate orders.yaml`, `deltaforge preflight orders.yaml`,
`deltaforge run orders.yaml`, and in a second shell `deltaforge status --watch`.

Exit codes: 0 done, 1 a person must act, 2 the document or the command line is wrong, 3 the same
command may work later.
"""

app = typer.Typer(
    name="deltaforge",
    help=_HELP,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_show_locals=False,
)
documents.register(app)
run.register(app)
serve.register(app)
fleet.register(app)
snapshot.register(app)
verify.register(app)
control.register(app)
failover.register(app)
schemas.register(app)
log.register(app)
sensing.register(app)
dlq.register(app)
slots.register(app)
sinks.register(app)
rewind.register(app)
archive.register(app)
token.register(app)
backup.register(app)
driver.register(app)
image.register(app)
precompile.register(app)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"deltaforge {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(  # noqa: PLR0917 - a command's options
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            exists=True,
            rich_help_panel=_SERVE,
            help="A pipeline document, or a folder of them.",
        ),
    ] = None,
    storage_backend: Annotated[
        str, typer.Option(rich_help_panel=_SERVE, help="sqlite or postgres.")
    ] = "sqlite",
    storage_path: Annotated[
        Path | None, typer.Option(rich_help_panel=_SERVE, help="File of a SQLite store.")
    ] = None,
    storage_dsn: Annotated[
        str | None, typer.Option(rich_help_panel=_SERVE, help="Address of a PostgreSQL store.")
    ] = None,
    api_addr: Annotated[
        str,
        typer.Option(envvar=API_ADDR, rich_help_panel=_SERVE, help="Address of the REST API."),
    ] = "127.0.0.1:8080",
    metrics_addr: Annotated[
        str,
        typer.Option(
            envvar=METRICS_ADDR,
            rich_help_panel=_SERVE,
            help="Address of /metrics alone; `off` for none.",
        ),
    ] = "off",
    local: Annotated[
        bool,
        typer.Option("--local", envvar=LOCAL, rich_help_panel=_SERVE, help="Without Spark."),
    ] = False,
) -> None:
    del version
    if config is None:
        for name in _SERVES:  # Variables of an image stand for whatever command comes.
            source = context.get_parameter_source(name)
            if source is not None and source.name == "COMMANDLINE":
                option = f"--{name.replace('_', '-')}"
                raise SpecError(f"{option}: goes together with --config; write it behind a command")
        return
    if context.invoked_subcommand is not None:
        raise SpecError("--config: stands for `deltaforge serve`; leave the command out")
    serve.serve(
        config,
        serve.store_of(storage_backend, storage_path, storage_dsn),
        local=local,
        api_addr=api_addr,
        metrics_addr=metrics_addr,
    )


def main() -> None:
    """Run the command line; the only place where errors become words and exit codes."""
    try:
        app()
    except SystemExit as ended:
        shutdown.see_off(ended.code if isinstance(ended.code, int) else FAILED)
        raise
    except DeltaForgeError as error:
        shutdown.see_off(exit_code(error))
        err.print(Text(error.error_class, "bold red"), end=": ")
        # It may quote a driver or a document, and with it a password.
        err.print(redacted(str(error)), highlight=False)
        sys.exit(exit_code(error))
    except Exception:  # noqa: BLE001 - a fault of ours: its traceback may quote as much
        shutdown.see_off(FAILED)
        err.print(redacted(traceback.format_exc()), highlight=False)
        sys.exit(FAILED)
    except KeyboardInterrupt:
        sys.exit(FAILED)


if __name__ == "__main__":
    main()
