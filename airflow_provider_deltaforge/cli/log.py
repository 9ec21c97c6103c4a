"""``deltaforge log``: a part of the source's log, by our decoder and by one that is not ours."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from airflow_provider_deltaforge.cli.exit_codes import FAILED
from airflow_provider_deltaforge.cli.options import (
    GivenStoreOption,
    JsonOption,
    chosen_store,
    err,
    opened,
    print_answer,
)
from airflow_provider_deltaforge.cli.views import new_table
from airflow_provider_deltaforge.control.log_comparison import (
    ComparedChange,
    LogComparison,
    LogQuery,
    compare_log,
    shown,
)
from airflow_provider_deltaforge.errors import RetryableError, SpecError
from airflow_provider_deltaforge.spec.load import load, read_document
from airflow_provider_deltaforge.storage.contract import Store

_COUNT_MAX = 10_000
_LINE_MAX = 300


def log(
    file: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, help="Pipeline document (YAML).")
    ],
    at: Annotated[
        str | None,
        typer.Option(
            help="Begin with the transaction that holds this place, or follows it: "
            "binlog.000002:1234 or a GTID (MySQL, MariaDB), 0/1A2B3C4D (PostgreSQL), the number of "
            "a change (Turso). Default: where the pipeline goes on reading."
        ),
    ] = None,
    around: Annotated[
        str | None, typer.Option(help="The same, with as many changes before it as behind it.")
    ] = None,
    table: Annotated[
        str | None, typer.Option(help="Only this table, or those of a pattern: shop.orders.")
    ] = None,
    count: Annotated[
        int,
        typer.Option(min=1, max=_COUNT_MAX, help="About how many changes; transactions are whole."),
    ] = 20,
    store: GivenStoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show changes of the source's log as an independent decoder reads them, beside ours.

    MySQL and MariaDB: python-mysql-replication. PostgreSQL: test_decoding, over a temporary copy of
    the pipeline's slot, which the server drops with the connection. Turso: the engine's own reading
    of the table of changes. The pipeline is not disturbed. Exits with 1 where the two differ.
    """
    if at is not None and around is not None:
        raise SpecError("--at, --around: give one of them; --around also shows what lies before")
    text = read_document(file)
    query = LogQuery(around if at is None else at, around is not None, table, count)
    with _known_store(chosen_store(text, store)) as state, err.status("reading the log twice"):
        found = compare_log(state, load(text), query)
    print_answer(found.as_dict(), _view(found), as_json=as_json)
    if not found.is_equal:
        raise typer.Exit(FAILED)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(rich_help_panel="Running pipelines")(log)


@contextmanager
def _known_store(store: str) -> Iterator[Store | None]:
    """Open the store if it is there: a place can be named without one."""
    try:
        context = opened(store)
        state = context.__enter__()
    except RetryableError:
        yield None
        return
    try:
        yield state
    finally:
        context.__exit__(None, None, None)


def _view(found: LogComparison) -> RenderableType:
    span = f"from {json.dumps(dict(found.after))} to {json.dumps(dict(found.upto))}"
    if not (found.changes or found.undecodable):
        return Text(f"No captured change {span}.")
    grid = new_table("", "transaction", "table", "op", "row")
    former = None
    for change in found.changes:
        known: Any = change.ours or change.theirs
        grid.add_row(
            Text("≠", "bold red") if change.differences else Text("=", "green"),
            "" if known.tx == former else known.tx,
            known.table,
            known.op,
            _row(change),
        )
        former = known.tx
    differing = sum(bool(change.differences) for change in found.changes)
    verdict = (
        Text(f"\n{len(found.changes)} changes, equal in both readings", "green")
        if not differing
        else Text(f"\n{differing} of {len(found.changes)} changes differ", "bold red")
    )
    reasons = [
        Text.assemble((f"{table} ", "bold red"), f"cannot be decoded by us: {reason}")
        for table, reason in found.undecodable.items()
    ]
    return Group(grid, verdict, *reasons, Text(span, "dim"))


def _row(change: ComparedChange) -> Text:
    """Return a change's row once where both agree, and what differs by name where not."""
    ours, theirs = change.ours, change.theirs
    line = Text(_short(_image(ours if ours is not None else theirs)))
    if theirs is not None and theirs.text:
        line.append(f"\n{_short(theirs.text)}", "dim")
    for name in change.differences:
        half, _, column = name.partition(".")
        if not column:
            line.append(f"\n{name}", "bold red")
            if ours is not None and theirs is not None and hasattr(ours, name):
                line.append(f": ours {_short(getattr(ours, name))}", "red")
                line.append(f", theirs {_short(getattr(theirs, name))}", "red")
            continue
        pair = [(getattr(side, half) or {}).get(column) for side in (ours, theirs)]
        line.append(f"\n{name}: ours {_short(pair[0])}, theirs {_short(pair[1])}", "red")
    if change.not_compared:
        line.append(f"\nnot compared: {', '.join(change.not_compared)}", "dim")
    return line


def _image(change: Any) -> Any:
    return change.before if change.after is None else change.after


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(shown(value), ensure_ascii=False)
    return text if len(text) <= _LINE_MAX else f"{text[:_LINE_MAX]}… ({len(text):,} characters)"
