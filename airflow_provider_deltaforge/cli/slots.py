"""The command about PostgreSQL's replication slots: ``slots``."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from airflow_provider_deltaforge.cli.options import (
    GivenStoreOption,
    JsonOption,
    chosen_store,
    opened,
    out,
)
from airflow_provider_deltaforge.cli.views import new_table
from airflow_provider_deltaforge.control.slots import OwnedSlot, drop_slot, list_slots
from airflow_provider_deltaforge.spec.load import load, read_document

_FileArgument = Annotated[
    Path,
    typer.Argument(exists=True, dir_okay=False, help="Pipeline document (YAML) of the database."),
]
_MIB = 1 << 20


def slots(
    file: _FileArgument,
    drop: Annotated[str | None, typer.Option(help="Drop the slot of this name.")] = None,
    confirm: Annotated[str, typer.Option(help="With --drop: the slot's name, once more.")] = "",
    store: GivenStoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the replication slots of a document's PostgreSQL database, and what they keep.

    Slots of the pipelines in the state store, of DataFrame readers beside them, and others. One
    that nobody reads from any more can be dropped: not one in use, not a pipeline's of this state
    store, and not one that DeltaForge did not name. Changes that it kept are lost to its reader.
    """
    text = read_document(file)
    with opened(chosen_store(text, store)) as state:
        if drop is not None:
            dropped = drop_slot(load(text), state, drop, confirm=confirm)
            out.print(f"{drop} is dropped; it kept {_size(dropped.kept_bytes)}", highlight=False)
            return
        found = list_slots(load(text), state)
    if as_json:
        rows = [
            {**asdict(owned.slot), "owner": owned.owner or None, "kept_for": owned.kept_for}
            for owned in found
        ]
        typer.echo(json.dumps(rows, indent=2))
    elif found:
        out.print(_grid(found))
    else:
        out.print("No slot keeps log for this database.")


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(rich_help_panel="Running pipelines")(slots)


def _grid(found: list[OwnedSlot]) -> Table:
    table = new_table("slot", "keeps", "read from", "whose")
    for owned in found:
        since = f"no, since {owned.slot.idle_since}" if owned.slot.idle_since else "no"
        kept = (
            "nothing, it is lost"
            if owned.slot.wal_status == "lost"
            else _size(owned.slot.kept_bytes)
        )
        cells = (
            owned.slot.name,
            kept,
            "yes" if owned.slot.active else since,
            owned.owner or "not known",
        )
        table.add_row(*map(Text, cells))
    return table


def _size(kept: int | None) -> str:
    return "nothing" if kept is None else f"{kept / _MIB:,.1f} MiB"
