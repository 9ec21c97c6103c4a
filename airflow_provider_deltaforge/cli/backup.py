"""Commands about the whole state store: ``backup`` and ``restore``."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as ProgressBar

from airflow_provider_deltaforge.cli.options import (
    DEFAULT_STORE,
    JsonOption,
    StoreOption,
    err,
    opened,
    out,
)
from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.storage.backup import (
    BackupSummary,
    Progress,
    check_backup,
    read_backup,
    write_backup,
)
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.sql import SqlStore


def backup(
    file: Annotated[Path, typer.Argument(dir_okay=False, help="The file to write.")],
    store: StoreOption = DEFAULT_STORE,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Write over a file that is there.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write one moment of the state store into a file, while pipelines run.

    It holds what the store holds: documents as written, positions, schemas, dead letters with their
    rows, and hashes of the REST API's tokens. See docs/backup.md.
    """
    if file.exists() and not overwrite:
        raise SpecError(f"{file} is there already: write --overwrite, or name another file")
    with opened(store) as state, _bar("writing") as progress:
        summary = write_backup(state, file, progress)
    if as_json:
        shown = {"file": str(file), "bytes": file.stat().st_size, **summary.as_dict()}
        typer.echo(json.dumps(shown, indent=2))
        return
    out.print(f"{file}: {_described(summary)}", highlight=False)


def restore(
    file: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, help="What `deltaforge backup` wrote.")
    ],
    store: StoreOption = DEFAULT_STORE,
    replace: Annotated[
        str | None,
        typer.Option(help="Replace what the store holds; repeat its file's or database's name."),
    ] = None,
    new_identity: Annotated[
        bool,
        typer.Option(
            "--new-identity",
            help="Make a second store, beside that of the backup, which goes on being used.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Put a backup into a state store, which is made if there is none.

    All of it or nothing, and only if the file is whole. Every driver that was started before is
    shut out, also one that is frozen; a store with drivers that run is refused. Pipelines go on
    from the positions of the backup. See docs/backup.md.
    """
    check_backup(file)  # Before a store is made for it.
    with opened(store, create=True) as state:
        if replace is not None:
            _require_replaceable(state, replace)
        with _bar("restoring") as progress:
            summary = read_backup(
                state,
                file,
                replace=replace is not None,
                new_identity=new_identity,
                progress=progress,
            )
    where = StoreLocation.from_dsn(store).shown()
    if as_json:
        typer.echo(json.dumps({"store": where, **summary.as_dict()}, indent=2))
        return
    out.print(f"{where} holds {_described(summary)}", highlight=False)
    if not new_identity:
        err.print(
            "It is the same store again: never run pipelines with it and with the one that the "
            "backup was made of. For a second one: --new-identity",
            style="yellow",
            highlight=False,
        )


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    for command in (backup, restore):
        app.command(rich_help_panel="State store")(command)


def _require_replaceable(state: object, name: str) -> None:
    """Refuse to replace another store than was named, or one whose drivers are heard."""
    if not isinstance(state, SqlStore):
        return  # Refused with its reason by who reads the backup.
    if name != state.name:
        raise SpecError(f"--replace: the store is called {state.name!r}, not {name!r}")
    if running := pipelines.with_drivers(state):
        raise SpecError(
            f"drivers of this store run ({', '.join(running)}), and what they write would be taken "
            f"back under them: `deltaforge stop {running[0]}` first"
        )


@contextmanager
def _bar(doing: str) -> Iterator[Progress]:
    """Show a bar where a person looks on."""
    columns = (TextColumn(doing), BarColumn(), MofNCompleteColumn(), TextColumn("rows"))
    with ProgressBar(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(doing, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _described(summary: BackupSummary) -> str:
    count, made_at = sum(summary.rows.values()), summary.made_at_ms / 1000
    pipelines_text = ", ".join(summary.pipelines) or "no pipeline"
    tokens = f", {summary.tokens} hashed tokens of the REST API" if summary.tokens else ""
    at = datetime.fromtimestamp(made_at, timezone.utc).isoformat(" ", "seconds")
    return f"{count:,} rows of {at} ({pipelines_text}{tokens}); SHA-256 {summary.sha256[:16]}…"
