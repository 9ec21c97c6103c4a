"""The commands ``dlq …``: events that were set aside."""

import json
import time
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from airflow_provider_deltaforge.cli.options import (
    DEFAULT_STORE,
    NUMBER_MAX,
    JsonOption,
    NameArgument,
    StoreOption,
    opened,
    print_answer,
)
from airflow_provider_deltaforge.cli.replay import replay
from airflow_provider_deltaforge.cli.views import new_table
from airflow_provider_deltaforge.control import dead_letters
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.events.table_names import qualified_name
from airflow_provider_deltaforge.storage.records.dead_letters import DeadLetterFilter

app = typer.Typer(
    help="Events that were set aside (`spec.journal`): look, send again, make room.",
    no_args_is_help=True,
)

SinkOption = Annotated[str | None, typer.Option(help="Only what this sink refused.")]
ProcessorOption = Annotated[str | None, typer.Option(help="Only what this processor refused.")]
KindOption = Annotated[str | None, typer.Option(help="Only errors of this kind.")]
TableOption = Annotated[str | None, typer.Option(help="Only events of this table: shop.orders.")]


@app.command()
def count(
    name: NameArgument,
    store: StoreOption = DEFAULT_STORE,
    sink: SinkOption = None,
    processor: ProcessorOption = None,
    kind: KindOption = None,
    table: TableOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how many events are in the queue."""
    with opened(store) as state:
        found = dead_letters.count(state, name, DeadLetterFilter(sink, processor, kind, table))
    typer.echo(json.dumps({"count": found}) if as_json else str(found))


@app.command("list")
def list_entries(  # noqa: PLR0917 - a command's options
    name: NameArgument,
    store: StoreOption = DEFAULT_STORE,
    sink: SinkOption = None,
    processor: ProcessorOption = None,
    kind: KindOption = None,
    table: TableOption = None,
    limit: Annotated[
        int, typer.Option(min=1, max=NUMBER_MAX, help="At most so many.")
    ] = dead_letters.LIMIT,
    after: Annotated[
        int, typer.Option(min=0, max=NUMBER_MAX, help="Only behind this sequence number.")
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """List what is set aside, oldest first: who refused it and why, without the rows."""
    which = DeadLetterFilter(sink, processor, kind, table)
    with opened(store) as state:
        found = dead_letters.entries(state, name, which, limit, after)
    bare = [{key: entry[key] for key in entry if key != "event"} for entry in found]
    print_answer(bare, _table(found), as_json=as_json)


@app.command()
def peek(  # noqa: PLR0917 - a command's options
    name: NameArgument,
    seq: Annotated[
        int | None,
        typer.Argument(min=0, max=NUMBER_MAX, help="Which; the oldest that fits if left out."),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    sink: SinkOption = None,
    processor: ProcessorOption = None,
    kind: KindOption = None,
    table: TableOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print one entry as JSON, with the event and its row."""
    del as_json  # It is JSON anyway; who asks for it everywhere may do so here.
    which = DeadLetterFilter(sink, processor, kind, table)
    if seq is not None and which != DeadLetterFilter():
        raise SpecError("give the number of an entry, or filters that choose one: not both")
    with opened(store) as state:
        if seq is not None:
            found = dead_letters.entry(state, name, seq)
        else:
            found = dead_letters.oldest(state, name, which)
    typer.echo(json.dumps(found, indent=2, ensure_ascii=False))


@app.command()
def ack(
    name: NameArgument,
    up_to_seq: Annotated[
        int, typer.Argument(min=0, max=NUMBER_MAX, help="The last sequence number to forget.")
    ],
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Forget everything up to and including a sequence number."""
    with opened(store) as state:
        acked = dead_letters.ack(state, name, up_to_seq)
    typer.echo(json.dumps({"acked": acked}) if as_json else _forgotten(acked))


@app.command()
def purge(
    name: NameArgument,
    confirm: Annotated[str, typer.Option(help="The pipeline's name, once more.")],
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Forget everything that is set aside."""
    if confirm != name:
        raise SpecError(f"to forget the dead letters of {name!r}, confirm with its name")
    with opened(store) as state:
        purged = dead_letters.purge(state, name)
    typer.echo(json.dumps({"purged": purged}) if as_json else _forgotten(purged))


def register(application: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command()(replay)
    application.add_typer(app, name="dlq", rich_help_panel="Running pipelines")


def _forgotten(entries: int) -> str:
    return f"{entries} {'entry' if entries == 1 else 'entries'} forgotten"


def _table(found: list[dict[str, Any]]) -> RenderableType:
    if not found:
        return Text("Nothing is set aside.")
    table = new_table("seq", "at", "table", "op", "refused by", "kind", "why", "newer in")
    for entry in found:
        event, meta = entry["event"], entry["meta"]
        source = event.get("source") or {}
        overtaken = ", ".join(meta.get("overtaken", ()))
        who = f"sink {meta['sink_id']}" if meta["sink_id"] else f"processor {meta['processor_id']}"
        table_name = qualified_name(
            str(source.get("schema") or source.get("db")), str(source.get("table"))
        )
        if not event:  # Of an entry that cannot be read.
            table_name, who = "", "unknown"
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(entry["timestamp"]))
        table.add_row(
            str(entry["seq"]),
            f"{at} UTC",
            table_name,
            str(event.get("op", "")),
            who,
            meta["error_kind"],
            meta["error_message"],
            overtaken,
        )
    return table
