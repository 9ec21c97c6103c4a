"""The command ``schemas``: what is registered of a pipeline's tables."""

import json
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from airflow_provider_deltaforge.cli.options import (
    DEFAULT_STORE,
    NUMBER_MAX,
    NameArgument,
    StoreOption,
    opened,
    out,
)
from airflow_provider_deltaforge.control import schemas as registered
from airflow_provider_deltaforge.errors import SpecError


def schemas(  # noqa: PLR0917 - a command's options
    name: NameArgument,
    table: Annotated[str | None, typer.Argument(help="One table: orders, or shop.orders.")] = None,
    store: StoreOption = DEFAULT_STORE,
    version: Annotated[
        int | None, typer.Option(min=1, max=NUMBER_MAX, help="The version of this number.")
    ] = None,
    at: Annotated[
        str | None, typer.Option(help="What was registered at this time (ISO 8601, else UTC).")
    ] = None,
    sequence: Annotated[
        int | None,
        typer.Option(
            min=0, max=NUMBER_MAX, help="The schema of an event with this schema_sequence."
        ),
    ] = None,
    reload: Annotated[
        bool, typer.Option("--reload", help="Register what the source's catalog says now.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show the table schemas that a pipeline's events were made with."""
    asked = registered.SchemaVersionQuery.of(version, at, sequence)
    chosen = asked != registered.SchemaVersionQuery()
    if chosen and (table is None or reload):
        raise SpecError("--version, --at and --sequence choose a version of one table: name it")
    told: Any
    with opened(store) as state:
        if reload:
            told = registered.reload(state, name, table)
            view = _reloaded(told)
        elif table is None:
            told = registered.schemas(state, name)
            view = _tables(told)
        else:
            told = registered.schema(state, name, table, asked)
            history = [] if chosen else registered.versions(state, name, table)
            told = {**told, **({} if chosen else {"versions": history})}
            view = _details(told, history)
    if as_json:
        typer.echo(json.dumps(told, indent=2))
    else:
        out.print(view)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(rich_help_panel="Running pipelines")(schemas)


def _full_name(one: dict[str, Any]) -> str:
    return f"{one.get('schema') or one['database']}.{one['table']}"


def _grid(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in titles:
        table.add_column(title, overflow="fold")
    return table


def _tables(told: list[dict[str, Any]]) -> RenderableType:
    if not told:
        return Text("No schemas yet; the stream registers a table with its first row.")
    grid = _grid("table", "version", "sequence", "columns", "primary key", "fingerprint")
    for one in told:
        grid.add_row(
            _full_name(one),
            *(str(one[key]) for key in ("registry_version", "sequence", "column_count")),
            ", ".join(one["primary_key"]),
            _short(one["fingerprint"]),
        )
    return grid


def _details(told: dict[str, Any], history: list[dict[str, Any]]) -> RenderableType:
    head = (
        f"{_full_name(told)}  version {told['registry_version']}, sequence {told['sequence']}, "
        f"registered {told['loaded_at']}\n{told['fingerprint']}\n"
    )
    grid = _grid("column", "type", "null", "key", "default", "extra")
    for column in told["columns"]:
        grid.add_row(
            column["name"],
            column["column_type"],
            "yes" if column["nullable"] else "no",
            "key" if column["is_primary_key"] else "",
            column["default_value"] or "",
            column["extra"] or "",
        )
    parts: list[RenderableType] = [Text(head), grid]
    if history:
        past = _grid("\nversion", "\nregistered", "\ncolumns", "\nposition")
        for entry in history:
            position = entry["position"]
            past.add_row(
                str(entry["version"]),
                entry["registered_at"],
                str(entry["column_count"]),
                "" if position is None else json.dumps(position),
            )
        parts.append(past)
    return Group(*parts)


def _reloaded(told: dict[str, Any]) -> RenderableType:
    grid = _grid("table", "")
    for one in told["tables"]:
        grid.add_row(_full_name(one), "changed" if one["changed"] else "as it was")
    return grid


def _short(fingerprint: str) -> str:
    return fingerprint.removeprefix("sha256:")[:12]
