"""The ``deltaforge`` command."""

import sys
import traceback
from typing import Annotated

import typer
from rich.text import Text

from airflow_provider_deltaforge import __version__
from airflow_provider_deltaforge.cli import (
    control,
    dlq,
    documents,
    driver,
    failover,
    run,
    schemas,
    serve,
    shutdown,
    sinks,
    slots,
    snapshot,
    token,
)
from airflow_provider_deltaforge.cli.exit_codes import FAILED, exit_code
from airflow_provider_deltaforge.cli.options import err
from airflow_provider_deltaforge.errors import DeltaForgeError
from airflow_provider_deltaforge.telemetry.redaction import redacted

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
    add_completion=False,
    pretty_exceptions_show_locals=False,
)
documents.register(app)
run.register(app)
serve.register(app)
snapshot.register(app)
control.register(app)
failover.register(app)
schemas.register(app)
dlq.register(app)
slots.register(app)
sinks.register(app)
token.register(app)
driver.register(app)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"deltaforge {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    del version


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
