"""The command ``schemas``: what is registered of a pipeline's tables."""

import json
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from airflow_provider_deltaforge.cli.options import (
    DEFAULT_STORE,
    NUMBER_MAX,
    JsonOption,
    NameArgument,
    StoreOption,
    TableArgument,
    opened,
    print_answer,
)
from airflow_provider_deltaforge.cli.views import new_table
from airflow_provider_deltaforge.control import schemas as registered
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.events.table_names import qualified_name


def schemas(  # noqa: PLR0917 - a command's options
    name: NameArgument,
    table: TableArgument = None,
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
    as_json: JsonOption = False,
) -> None:
    """Show the table schemas that a pipeline's events were made with."""
    asked = registered.SchemaVersionQuery.of(version, at, sequence)
    chosen = asked != registered.SchemaVersionQuery()
    if chosen and (table is None or reload):
        raise SpecError("--version, --at and --sequence choose a version of one table: name it")
    answer: Any
    with opened(store) as state:
        if reload:
            answer = registered.reload(state, name, table)
            view = _reloaded(answer)
        elif table is None:
            answer = registered.schemas(state, name)
            view = _tables(answer)
        else:
            answer = registered.schema(state, name, table, asked)
            history = [] if chosen else registered.versions(state, name, table)
            answer = {**answer, **({} if chosen else {"versions": history})}
            view = _details(answer, history)
    print_answer(answer, view, as_json=as_json)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(rich_help_panel="Running pipelines")(schemas)


def _full_name(schema: dict[str, Any]) -> str:
    return qualified_name(schema.get("schema") or schema["database"], schema["table"])


def _tables(schemas: list[dict[str, Any]]) -> RenderableType:
    if not schemas:
        return Text("No schemas yet; the stream registers a table with its first row.")
    grid = new_table("table", "version", "sequence", "columns", "primary key", "fingerprint")
    for schema in schemas:
        grid.add_row(
            _full_name(schema),
            *(str(schema[key]) for key in ("registry_version", "sequence", "column_count")),
            ", ".join(schema["primary_key"]),
            _short(schema["fingerprint"]),
        )
    return grid


def _details(schema: dict[str, Any], history: list[dict[str, Any]]) -> RenderableType:
    head = (
        f"{_full_name(schema)}  version {schema['registry_version']}, "
        f"sequence {schema['sequence']}, "
        f"registered {schema['loaded_at']}\n{schema['fingerprint']}\n"
    )
    grid = new_table("column", "type", "null", "key", "default", "extra")
    for column in schema["columns"]:
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
        past = new_table("\nversion", "\nregistered", "\ncolumns", "\nposition")
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


def _reloaded(reloaded: dict[str, Any]) -> RenderableType:
    grid = new_table("table", "")
    for schema in reloaded["tables"]:
        grid.add_row(_full_name(schema), "changed" if schema["changed"] else "as it was")
    return grid


def _short(fingerprint: str) -> str:
    return fingerprint.removeprefix("sha256:")[:12]
