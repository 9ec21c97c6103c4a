"""The commands ``sinks …``: sinks that are behind or were given up."""

import getpass
import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from airflow_provider_deltaforge.cli.options import (
    DEFAULT_STORE,
    JsonOption,
    NameArgument,
    StoreOption,
    opened,
    print_answer,
)
from airflow_provider_deltaforge.cli.views import new_table
from airflow_provider_deltaforge.control import sinks

app = typer.Typer(
    help="Sinks that a pipeline goes on without: list them, give one up, resume one.",
    no_args_is_help=True,
)

SinkArgument = Annotated[str, typer.Argument(help="Id of the sink.")]


@app.command("list")
def list_sinks(
    name: NameArgument, store: StoreOption = DEFAULT_STORE, as_json: JsonOption = False
) -> None:
    """List the sinks of a pipeline: the state of each, since when and why, and what it lacks."""
    with opened(store) as state:
        found = sinks.entries(state, name)
    print_answer(found, _table(found), as_json=as_json)


@app.command("give-up")
def give_up(name: NameArgument, sink: SinkArgument, store: StoreOption = DEFAULT_STORE) -> None:
    """Give a sink up that is behind: its gap is recorded, and the log is not kept for it."""
    with opened(store) as state:
        sinks.want(state, name, sink, "give_up", getpass.getuser())
    typer.echo(f"{sink} is given up within seconds; see `deltaforge sinks list {name}`")


@app.command()
def adopt(name: NameArgument, sink: SinkArgument, store: StoreOption = DEFAULT_STORE) -> None:
    """Take a sink over that holds a position of another state store, which was lost or replaced.

    At the next start the pipeline goes on at its own checkpoint or, if it has none, at the position
    that the sink holds. If another pipeline still writes there, rename one of the two instead.
    """
    with opened(store) as state:
        found = sinks.adopt(state, name, sink, getpass.getuser())
    typer.echo(
        f"{sink} is taken over from state store {found.store} when {name} starts again: "
        "`deltaforge run FILE`"
    )


@app.command()
def resume(name: NameArgument, sink: SinkArgument, store: StoreOption = DEFAULT_STORE) -> None:
    """Resume a sink that was given up, from the pipeline's position, without what it missed."""
    with opened(store) as state:
        sinks.want(state, name, sink, "resume", getpass.getuser())
    typer.echo(
        f"{sink} goes on with the pipeline; what it lacks comes with a copy of the tables: "
        "`deltaforge snapshot FILE --again`"
    )


def register(application: typer.Typer) -> None:
    """Add the commands to the application."""
    application.add_typer(app, name="sinks", rich_help_panel="Running pipelines")


def _table(found: list[dict[str, Any]]) -> RenderableType:
    table = new_table("sink", "status", "position", "reason")
    gaps: list[RenderableType] = []
    for sink in found:
        at = sink.get("position")
        details = ("" if at is None else json.dumps(at), sink.get("reason") or "")
        table.add_row(sink["sink"], sink["status"], *details)
        for gap in sink["gaps"]:
            if gap["end"] == gap["start"]:
                continue  # A rewind delivered it later.
            end = "until it goes on" if gap["end"] is None else f"to {json.dumps(gap['end'])}"
            text = f"lacks what comes behind {json.dumps(gap['start'])}, {end}: {gap['why']}"
            gaps.append(Text.assemble("\n", (sink["sink"], "bold"), f" {text}"))
        for text in _rewinds(sink):
            gaps.append(Text.assemble("\n", (sink["sink"], "bold"), f" {text}"))
    return Group(table, *gaps)


def _rewinds(sink: dict[str, Any]) -> Iterator[str]:
    """Yield what a sink is, was or will be given again, and what was refused, in words."""
    asked = sink["rewind_asked"]
    for shown in (asked or sink["rewind"], sink["rewind_refused"]):
        if shown is not None:
            tables = f" of {', '.join(shown['tables'])}" if shown["tables"] else ""
            why = f": {shown['reason']}" if shown.get("reason") else ""
            state = "asked for" if shown is asked else shown["state"]
            yield f"rewind{tables} to {json.dumps(shown['to'])}, by {shown['by']}: {state}{why}"
