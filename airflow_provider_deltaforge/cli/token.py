"""Commands about tokens of the REST API: ``token create``, ``list``, ``revoke``."""

import json
from datetime import datetime, timezone
from typing import Annotated

import typer

from airflow_provider_deltaforge.cli.options import (
    DEFAULT_STORE,
    JsonOption,
    StoreOption,
    err,
    opened,
    out,
)
from airflow_provider_deltaforge.cli.views import new_table
from airflow_provider_deltaforge.control import tokens
from airflow_provider_deltaforge.errors import SpecError

app = typer.Typer(
    help="Tokens of the REST API of `deltaforge serve`.",
    no_args_is_help=True,
)

_TokenName = Annotated[str, typer.Argument(help="What the token is called, in lists and logs.")]


@app.command()
def create(
    name: _TokenName,
    store: StoreOption = DEFAULT_STORE,
    scope: Annotated[
        str,
        typer.Option(help="read: look; operate: also pause, copy, replay; admin: everything."),
    ] = "read",
    as_json: JsonOption = False,
) -> None:
    """Make a token and print it, once: only its hash is kept."""
    if scope not in tokens.SCOPES:
        raise SpecError(f"--scope: write {', '.join(tokens.SCOPES)}, not {scope!r}")
    tokens.check_name(name)  # Before a store is made for it.
    with opened(store, create=True) as state:
        token = tokens.create(state, name, scope)
    if as_json:
        typer.echo(json.dumps({"name": name, "scope": scope, "token": token}, indent=2))
        return
    err.print(f"token {name!r} with the scope {scope}; it is not shown again:", highlight=False)
    typer.echo(token)


@app.command("list")
def list_tokens(
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Show what tokens there are, without the tokens themselves."""
    with opened(store) as state:
        found = tokens.tokens(state)
    if as_json:
        typer.echo(json.dumps([token.model_dump(exclude={"v"}) for token in found], indent=2))
        return
    table = new_table("name", "scope", "created")
    for token in found:
        created = datetime.fromtimestamp(token.created_at_ms / 1000, timezone.utc)
        table.add_row(token.name, token.scope, created.isoformat(" ", "seconds"))
    out.print(table)


@app.command()
def revoke(name: _TokenName, store: StoreOption = DEFAULT_STORE) -> None:
    """Make a token worthless, from the next request on."""
    with opened(store) as state:
        tokens.revoke(state, name)
    out.print(f"token {name} is revoked")


def register(application: typer.Typer) -> None:
    """Add the commands to the application."""
    application.add_typer(app, name="token", rich_help_panel="Running pipelines")
