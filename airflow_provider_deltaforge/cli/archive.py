"""The commands ``archive …``: the log as a pipeline keeps it (``spec.archive``)."""

import json
from datetime import datetime, timezone
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.text import Text

from airflow_provider_deltaforge.cli.exit_codes import FAILED
from airflow_provider_deltaforge.cli.options import (
    DEFAULT_STORE,
    JsonOption,
    NameArgument,
    StoreOption,
    err,
    opened,
    out,
)
from airflow_provider_deltaforge.cli.views import new_table
from airflow_provider_deltaforge.control import archives

app = typer.Typer(
    help="The source's log as a pipeline keeps it (`spec.archive`): what is there, is it whole.",
    no_args_is_help=True,
)


@app.command("list")
def list_archive(
    name: NameArgument,
    store: StoreOption = DEFAULT_STORE,
    files: Annotated[
        bool, typer.Option("--files", help="Print the paths of the files of rows that count.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List what the archive of a pipeline has: by day and table, from where to where, and holes."""
    with opened(store) as state, err.status("reading the archive"):
        archive = archives.open_archive(state, name)
    found = archives.contents(archive)
    if files:
        found = {"files": [f"{archive.folder.shown}/{file.path}" for file in archive.row_files()]}
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    elif files:
        for path in found["files"]:
            typer.echo(path)
    else:
        out.print(_view(found))


@app.command()
def check(
    name: NameArgument, store: StoreOption = DEFAULT_STORE, as_json: JsonOption = False
) -> None:
    """Read every file of the archive and compare it with what was written.

    Exits with 1 where a file is damaged or missing, or the archive has a hole.
    """
    with opened(store) as state, err.status("reading every file of the archive"):
        archive = archives.open_archive(state, name)
        damaged = list(archives.damage(archive))
    found = archives.contents(archive)
    if as_json:
        shown = {key: found[key] for key in ("directory", "spans", "holes")}
        typer.echo(json.dumps({**shown, "damaged": damaged}, indent=2))
    else:
        out.print(Group(_spans(found), *(Text(reason, "bold red") for reason in damaged)))
        if not damaged and not found["holes"]:
            out.print(Text("every file is what was written, and nothing is missing", "green"))
    if damaged or found["holes"]:
        raise typer.Exit(FAILED)


def register(application: typer.Typer) -> None:
    """Add the commands to the application."""
    application.add_typer(app, name="archive", rich_help_panel="Running pipelines")


def _view(found: dict[str, Any]) -> RenderableType:
    table = new_table("\nday", "\ntable", "\nrows", "\nsize", "\nfiles")
    for each in found["tables"]:
        counts = (f"{each['rows']:,}", decimal(each["bytes"]), f"{each['files']:,}")
        table.add_row(each["day"], Text(each["table"]), *counts)
    return Group(_spans(found), table) if found["tables"] else _spans(found)


def _spans(found: dict[str, Any]) -> RenderableType:
    """Return the stretches of the log, and what is missing between two."""
    lines: list[RenderableType] = [Text(found["directory"], "bold", overflow="fold")]
    if not found["spans"]:
        lines.append(Text("nothing is archived yet"))
    for at, span in enumerate(found["spans"]):
        if at:
            hole = found["holes"][at - 1]
            lines.append(Text(f"hole   {hole['reason']}", "bold red", overflow="fold"))
        times = f"{_time(span['from_ms'])} to {_time(span['to_ms'])}"
        lines.append(Text(f"{times}, {span['rows']:,} changes, {decimal(span['bytes'])}"))
        lines.append(Text(f"  from {json.dumps(span['start'])}", "dim", overflow="fold"))
        lines.append(Text(f"  to   {json.dumps(span['end'])}", "dim", overflow="fold"))
    return Group(*lines)


def _time(ms: int | None) -> str:
    if ms is None:
        return "no change"
    return datetime.fromtimestamp(ms / 1000, timezone.utc).isoformat(" ", "milliseconds")
