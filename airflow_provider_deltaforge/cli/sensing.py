"""The commands ``sense`` and ``drift``: what rows really hold, and where that is not expected."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from airflow_provider_deltaforge.cli.exit_codes import FAILED
from airflow_provider_deltaforge.cli.options import (
    DEFAULT_STORE,
    JsonOption,
    NameArgument,
    StoreOption,
    TableArgument,
    opened,
    print_answer,
)
from airflow_provider_deltaforge.cli.views import new_table
from airflow_provider_deltaforge.control import data_drift, sensing
from airflow_provider_deltaforge.errors import SpecError


def sense(
    name: NameArgument,
    table: Annotated[
        str | None,
        typer.Argument(help="A table, shop.orders, or a JSON column, shop.orders:metadata."),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    json_schema: Annotated[
        Literal["draft-07", "2020-12"] | None,
        typer.Option(help="Print the table's JSON Schema in this draft."),
    ] = None,
    maps: Annotated[
        bool, typer.Option("--maps", help="Show which objects are maps, whose keys are data.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the structure that was sensed of a pipeline's tables and JSON columns."""
    if (json_schema or maps) and table is None:
        raise SpecError("--json-schema and --maps show one table or JSON column: name it")
    if json_schema and maps:
        raise SpecError("give one of --json-schema and --maps")
    answer: Any
    view: RenderableType = ""
    with opened(store) as state:
        if table is None:
            answer = sensing.schemas(state, name)
            view = _schemas(answer)
        elif json_schema:
            answer = sensing.json_schema(state, name, table, json_schema)
        elif maps:
            answer = sensing.classifications(state, name, table)
            view = _maps(answer)
        else:
            answer = sensing.schema(state, name, table)
            view = _schema(answer)
    print_answer(answer, view, as_json=as_json or bool(json_schema))


def drift(
    name: NameArgument,
    table: TableArgument = None,
    store: StoreOption = DEFAULT_STORE,
    since: Annotated[
        str | None,
        typer.Option(help="Only what was seen since: 6h, 30m, or a time in ISO 8601."),
    ] = None,
    fail: Annotated[bool, typer.Option("--fail", help="Exit with 1 when there is drift.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show where events differ from what the catalog says of their tables."""
    since_ms = data_drift.since_ms(since)
    answer: Any
    with opened(store) as state:
        if table is None:
            answer = data_drift.drift(state, name, since_ms)
        else:
            answer = data_drift.table_drift(state, name, table, since_ms)
    tables = answer if table is None else [answer]
    print_answer(answer, _drift(tables), as_json=as_json)
    if fail and any(found["has_drift"] for found in tables):
        raise typer.Exit(FAILED)


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command(rich_help_panel="Running pipelines")(sense)
    app.command(rich_help_panel="Running pipelines")(drift)


def _schemas(schemas: list[dict[str, Any]]) -> RenderableType:
    if not schemas:
        return Text("Nothing sensed yet; the first event of a table begins it.")
    grid = new_table("table", "events", "sequence", "stable", "last seen")
    for schema in schemas:
        grid.add_row(
            schema["table"],
            f"{schema['event_count']:,}",
            str(schema["sequence"]),
            "yes" if schema["stabilized"] else "no",
            schema["last_seen"],
        )
    return grid


def _schema(schema: dict[str, Any]) -> RenderableType:
    head = (
        f"{schema['table']}  sequence {schema['sequence']}, {schema['event_count']:,} events\n"
        f"{schema['fingerprint']}\n"
    )
    grid = new_table("field", "types", "null", "optional", "elements", "fields")
    for field in schema["fields"]:
        grid.add_row(
            field["name"],
            ", ".join(field["types"]),
            "yes" if field["nullable"] else "no",
            "yes" if field["optional"] else "no",
            ", ".join(field.get("array_element_types", ())),
            str(field.get("nested_field_count", "")),
        )
    return Group(Text(head), grid)


def _maps(found: dict[str, Any]) -> RenderableType:
    if not found["paths"]:
        return Text(f"No objects were looked at in {found['table']}.")
    grid = new_table("path", "map", "keys", "fields")
    for path, known in found["paths"].items():
        grid.add_row(
            path or "(whole)",
            "yes" if known["has_dynamic_fields"] else "no",
            f"{known['unique_keys']:,}" if "unique_keys" in known else "",
            ", ".join(known["stable_fields"]),
        )
    return grid


def _drift(tables: Iterable[dict[str, Any]]) -> RenderableType:
    found = list(tables)
    if not found:
        return Text("No events were looked at yet.")
    grid = new_table("table", "events", "differ", "drift")
    for table in found:
        grid.add_row(
            table["table"],
            f"{table['events_analyzed']:,}",
            f"{table['events_with_drift']:,}",
            Text("yes", style="bold red") if table["has_drift"] else Text("no", style="green"),
        )
    parts: list[RenderableType] = [grid]
    for table in found:
        if table["records"]:
            parts += [Text(f"\n{table['table']}", style="bold"), _records(table["records"])]
    return Group(*parts)


def _records(records: Iterable[dict[str, Any]]) -> RenderableType:
    grid = new_table("column", "drift", "count", "expected", "observed", "samples")
    for column in grid.columns[1:3]:
        column.no_wrap = True
    for record in records:
        grid.add_row(
            record["column"],
            record["drift_type"],
            f"{record['count']:,}",
            record["expected"],
            record["observed"],
            "  ".join(record["samples"] or record.get("new_fields", ())),
        )
    return grid
