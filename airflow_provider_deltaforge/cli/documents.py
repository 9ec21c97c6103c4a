"""Commands about documents: ``validate``, ``schema``, ``preflight``, ``plan``, ``apply``."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from airflow_provider_deltaforge.cli.exit_codes import DOCUMENT, FAILED, OK
from airflow_provider_deltaforge.cli.options import (
    GivenStoreOption,
    JsonOption,
    chosen_store,
    err,
    opened,
    out,
)
from airflow_provider_deltaforge.cli.views import findings_table, new_table
from airflow_provider_deltaforge.columns import json_fields
from airflow_provider_deltaforge.control.pipelines import apply as keep
from airflow_provider_deltaforge.control.plan import plan as plan_of
from airflow_provider_deltaforge.control.preflight import preflight as ask
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.processors.precompile import precompile_for
from airflow_provider_deltaforge.sensing import structures
from airflow_provider_deltaforge.sensing.data_drift import detector as data_drift
from airflow_provider_deltaforge.spec.document import Pipeline
from airflow_provider_deltaforge.spec.inline_secrets import withhold
from airflow_provider_deltaforge.spec.json_schema import json_schema
from airflow_provider_deltaforge.spec.load import documents_at, load, read_document
from airflow_provider_deltaforge.telemetry.redaction import redacted

_FileArgument = Annotated[
    Path, typer.Argument(exists=True, dir_okay=False, help="Pipeline document (YAML).")
]


def validate(
    paths: Annotated[
        list[Path],
        typer.Argument(exists=True, help="Pipeline documents (YAML), or directories of them."),
    ],
    expand: Annotated[
        bool,
        typer.Option(help="Resolve ${VAR} from the environment, as the driver will."),
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Check documents: every wrong key at once, with its path and line.

    In a directory, every ``*.yaml`` and ``*.yml`` to its bottom, and that no two have one name.
    Also says which settings this release would refuse to run, and compiles scripts if their
    interpreter is installed.
    """
    found: list[_Validity] = []
    for path in paths:
        known: dict[str, Path] = {}
        files = documents_at(path)
        found += [_validity(file, known, expand=expand) for file in files]
        if not files:
            error = "there is no document in this folder: *.yaml, or *.yml"
            found.append(_Validity(str(path), valid=False, error=error))
    if as_json:
        typer.echo(json.dumps([asdict(document) for document in found], indent=2))
    else:
        for document in found:
            _show(document)
    raise typer.Exit(OK if all(document.valid for document in found) else DOCUMENT)


@dataclass(frozen=True, slots=True)
class _Validity:
    """How a document is; ``error`` names every wrong key."""

    file: str
    valid: bool
    pipeline: str | None = None
    sinks: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    error: str | None = None


def _validity(file: Path, known: dict[str, Path], *, expand: bool) -> _Validity:
    """Check a document; ``known`` gets its name, and refuses one that is there."""
    try:
        pipeline, warnings = _checked(file, known, expand=expand)
    except SpecError as error:
        text = redacted(str(error)).removeprefix(f"{file}: ")
        return _Validity(str(file), valid=False, error=text)
    return _Validity(
        str(file),
        valid=True,
        pipeline=pipeline.name,
        sinks=tuple(sink.id for sink in pipeline.spec.sinks),
        warnings=warnings,
    )


def _checked(
    file: Path, known: dict[str, Path], *, expand: bool
) -> tuple[Pipeline, tuple[str, ...]]:
    """Return a document that is right, and what to warn of.

    Raises:
        SpecError: it is wrong, or has the name of one that is known.
    """
    text = read_document(file)
    pipeline = load(text, expand=expand)
    pipeline.refuse_unbuilt()
    for processor in pipeline.spec.processors:
        processor.check()
    warnings = withhold(text, load(text, expand=False)).warnings
    former = known.setdefault(pipeline.name, file)
    if former != file:
        raise SpecError(f"the pipeline {pipeline.name!r} is already in {former}")
    return pipeline, tuple(str(warning) for warning in warnings)


def _show(document: _Validity) -> None:
    if document.error is not None:
        err.print(Text(document.file, "bold red"), end=": ")
        err.print(document.error, highlight=False)
        return
    for warning in document.warnings:
        err.print(Text(f"{document.file}: warning", "yellow"), end=": ")
        err.print(warning, highlight=False)
    sinks = ", ".join(document.sinks)
    named = Text(document.file, "green")
    out.print(named, f": pipeline {document.pipeline} is valid (to {sinks})", sep="")


def schema() -> None:
    """Print the JSON Schema of pipeline documents, for editors and CI."""
    typer.echo(json.dumps(json_schema(), indent=2))


def preflight(file: _FileArgument, as_json: JsonOption = False) -> None:
    """Ask the source whether it can be captured: settings, permissions, retention.

    Also asks Kafka, Redis, NATS and schema registries whether they answer, accept the credentials
    and have the stream, and compiles the decoders and the processors, once for each installation,
    so that no pipeline waits for it later. Exits with 1 when a check fails.
    """
    pipeline = load(read_document(file))
    with err.status("asking the source and the sinks"):
        findings = ask(pipeline)
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2, default=str))
    else:
        out.print(findings_table(findings))
    if any(finding.verdict == "fail" for finding in findings):
        raise typer.Exit(FAILED)
    with err.status("compiling decoders and processors, once for each installation"):
        pipeline.spec.source.precompile()
        precompile_for(pipeline.spec.processors)
        json_fields.precompile()  # Templates of sinks name fields of row images.
        if pipeline.spec.schema_sensing.enabled:
            data_drift.precompile()
            structures.precompile()


def plan(
    file: _FileArgument,
    store: GivenStoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what applying a document would change, and what follows; nothing is written."""
    text = read_document(file)
    with opened(chosen_store(text, store)) as state:
        found = plan_of(state, text)
    if as_json:
        typer.echo(json.dumps(found.as_dict(), indent=2))
        return
    table = new_table("setting", "before", "after")
    for change in found.changes:
        before, after = _written(change.before), _written(change.after)
        table.add_row(change.key, Text(before, "red"), Text(after, "green"))
    if found.changes and not found.is_new:
        out.print(table)
    for effect in found.effects:
        out.print(f"{found.name}: {effect}", highlight=False)


def apply(file: _FileArgument, store: GivenStoreOption = None, as_json: JsonOption = False) -> None:
    """Keep a document as what its pipeline is to be, without starting anything.

    A driver that runs goes on with the former document until `run`, `serve` or its DAG starts it.
    """
    text = read_document(file)
    with opened(chosen_store(text, store), create=True) as state:
        found = plan_of(state, text)
        applied = keep(state, text)
    if as_json:
        typer.echo(json.dumps({**found.as_dict(), "warnings": applied.warnings}, indent=2))
        return
    for warning in applied.warnings:
        err.print(Text("warning", "yellow"), end=": ")
        err.print(warning, highlight=False)
    for effect in found.effects:
        out.print(f"{applied.name}: {effect}", highlight=False)


def _written(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    panel = "Documents"
    for command in (validate, schema, preflight, plan, apply):
        app.command(rich_help_panel=panel)(command)
