"""From which columns of which tables what a pipeline writes is made."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from airflow_provider_deltaforge.control.schemas import registered_tables
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.processors.contract import Processor
from airflow_provider_deltaforge.sinks.contract import Sink
from airflow_provider_deltaforge.spec.document import Pipeline
from airflow_provider_deltaforge.spec.template import Path, Template
from airflow_provider_deltaforge.storage.contract import Store

TABLES_MAX = 500
"""Events of lineage are one message each; of more tables those that come first by name."""


@dataclass(frozen=True, slots=True)
class LineageInput:
    """A captured table; ``columns`` holds the type by column."""

    namespace: str
    name: str
    columns: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LineageColumn:
    """The column of a table that a column of a destination is made of."""

    table: LineageInput
    name: str
    is_masked: bool


@dataclass(slots=True)
class LineageOutput:
    """A destination.

    Attributes:
        namespace: of the system.
        name: of the destination; fields that differ from row to row stay as templates.
        tables: whose rows go there.
        columns: what each is made of; empty where a processor may make anything of anything.
    """

    namespace: str
    name: str
    tables: list[LineageInput] = field(default_factory=list)
    columns: dict[str, list[LineageColumn]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Lineage:
    """What a pipeline reads and writes, as its document and the registered schemas say it."""

    inputs: Sequence[LineageInput]
    outputs: Sequence[LineageOutput]


def lineage(store: Store, pipeline: Pipeline) -> Lineage:
    """Return what a pipeline reads and writes.

    Only tables whose schema is registered are known: those that were copied, or read once. That a
    processor of yours, or an outbox, chooses another destination is not seen.

    Args:
        store: the state store.
        pipeline: its document, with the values of its variables.
    """
    spec = pipeline.spec
    namespace = spec.source.dataset_namespace()
    tables = [
        table
        for table in registered_tables(store, pipeline)
        if all(processor.lets_pass(table) for processor in spec.processors)
    ][:TABLES_MAX]
    inputs = {table: _input(namespace, table) for table in tables}
    outputs: dict[tuple[str, str], LineageOutput] = {}
    for sink in spec.sinks:
        for table, read in inputs.items():
            for place in _destinations(sink, pipeline, table):
                output = outputs.setdefault(place, LineageOutput(*place))
                output.tables.append(read)
                _add_columns(output, table, read, spec.processors)
    return Lineage(list(inputs.values()), list(outputs.values()))


def _input(namespace: str, table: TableSchema) -> LineageInput:
    name = ".".join(part for part in (table.db, table.schema, table.table) if part)
    return LineageInput(namespace, name, {each.name: each.column_type for each in table.columns})


def _destinations(sink: Sink, pipeline: Pipeline, table: TableSchema) -> Iterator[tuple[str, str]]:
    found = sink.dataset()
    if found is None:
        return
    namespace, template = found
    known = {
        ("source", "db"): table.db,
        ("source", "schema"): table.schema or "",
        ("source", "table"): table.table,
        ("source", "name"): pipeline.metadata.name,
        ("source", "connector"): pipeline.spec.source.connector,
        ("tenant_id",): pipeline.metadata.tenant,
    }
    parts = (
        known.get(part.segments, f"${{{part}}}") if isinstance(part, Path) else part
        for part in Template.parse(template).parts
    )
    yield namespace, "".join(parts)


def _add_columns(
    output: LineageOutput,
    table: TableSchema,
    read: LineageInput,
    processors: Sequence[Processor],
) -> None:
    if not all(processor.keeps_columns for processor in processors):
        return
    for column in table.columns:
        is_masked = any(processor.hides(table, column.name) for processor in processors)
        made_of = LineageColumn(read, column.name, is_masked)
        output.columns.setdefault(column.name, []).append(made_of)
