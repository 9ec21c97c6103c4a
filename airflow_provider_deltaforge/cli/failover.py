"""Commands about changes of server: ``failovers``, and ``reset`` where one lost the position."""

import json
import time
from typing import Annotated

import typer
from rich.table import Table

from airflow_provider_deltaforge.cli.options import (
    DEFAULT_STORE,
    JsonOption,
    NameArgument,
    StoreOption,
    backend_of,
    opened,
    out,
)
from airflow_provider_deltaforge.cli.views import coloured, new_table
from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.schemas.drift import Delta, described
from airflow_provider_deltaforge.storage.records.failover import Failovers, Reconciliation


def failovers(
    name: NameArgument,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Show which server a pipeline's source is read from, and what became of each change."""
    with opened(store) as state:
        applied = pipelines.existing(state, name).read()
        records = Failovers(state, applied.source_id if applied is not None else "")
        identity, latest, ended = records.identity(), records.latest(), records.history()
    shown = [*ended, *([latest] if latest is not None and latest.state == "reading" else [])]
    if as_json:
        changes = [record.model_dump(exclude={"v"}) for record in shown]
        typer.echo(json.dumps({"server": identity, "failovers": changes}, indent=2))
        return
    out.print("server   ", _server(identity) if identity else "none was read yet", highlight=False)
    if shown:
        out.print(_table(shown))


def reset(
    name: NameArgument,
    confirm: Annotated[str, typer.Option(help="The pipeline's name, once more.")],
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Forget every position and snapshot of a stopped pipeline, so that it starts afresh.

    What was delivered stays where it is; the next run takes the snapshot that the document asks
    for. This is what repairs a lost position.
    """
    with opened(store) as state:
        pipelines.reset_checkpoint(state, name, confirm=confirm, backend=backend_of(store))
    out.print(f"{name} begins anew with its next run")


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    for command in (failovers, reset):
        app.command(rich_help_panel="Running pipelines")(command)


def _table(records: list[Reconciliation]) -> Table:
    table = new_table("\nat", "\nfrom", "\nto", "\noutcome")
    for record in records:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(record.started_at_ms / 1000))
        outcome = coloured("failed" if record.state == "failed" else record.state)
        if what := record.reason or described([Delta(**delta) for delta in record.drift]):
            outcome.append(f": {what}")
        table.add_row(f"{at} UTC", _server(record.former), _server(record.present), outcome)
    return table


def _server(identity: dict[str, object]) -> str:
    return " ".join(str(value) for key, value in identity.items() if key != "type")
