"""``deltaforge rewind``: deliver the source's log to sinks again."""

import getpass
import json
from typing import Annotated

import typer

from airflow_provider_deltaforge.cli.options import (
    DEFAULT_STORE,
    JsonOption,
    NameArgument,
    StoreOption,
    err,
    opened,
)
from airflow_provider_deltaforge.control import rewind as rewinding
from airflow_provider_deltaforge.control.rewind import RewindSelection
from airflow_provider_deltaforge.events.table_names import named_or_all


def rewind(
    name: NameArgument,
    to: Annotated[
        str,
        typer.Option(
            help="Where the log is delivered again from: a time (2026-11-23T10:00:00+01:00, in UTC "
            "without a zone; or '90m ago', '2h ago', '1d ago'), or a place: binlog.000002:1234 or "
            "a GTID (MySQL, MariaDB), 0/1A2B3C4D (PostgreSQL), the number of a change (Turso), or "
            "a position as `deltaforge sinks list` shows it."
        ),
    ],
    sink: Annotated[str | None, typer.Option(help="Only this sink. Default: all sinks.")] = None,
    tables: Annotated[
        str | None,
        typer.Option(
            help="Only changes of these tables, by patterns with commas between (shop.orders), "
            "up to the sink's present position; behind that, changes of all tables are delivered."
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do it. Without this, only show what would be done.")
    ] = False,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Deliver the source's log again, from any point that the source still has.

    Events keep the ids that they had the first time. The pipeline does not wait for a sink that
    gets the log again until that has caught up; the other sinks see nothing of it. A running
    pipeline begins within seconds, a stopped one when it starts. `deltaforge sinks list` shows how
    far it is.
    """
    chosen = named_or_all("--tables", tables)
    with opened(store) as state:
        with err.status("searching the source's log"):
            planned = rewinding.plan(state, name, RewindSelection(to, sink, chosen))
        if yes:
            rewinding.request(state, name, planned, getpass.getuser())
    if as_json:
        typer.echo(json.dumps({**planned.as_dict(), "requested": yes}, indent=2))
        return
    typer.echo(planned.summary)
    if yes:
        typer.echo(f"asked for; see `deltaforge sinks list {name}`")
    else:
        typer.echo("nothing was changed; to do it, add --yes")


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(rich_help_panel="Running pipelines")(rewind)
