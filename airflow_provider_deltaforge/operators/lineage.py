"""The lineage of pipelines in the classes of OpenLineage, whose provider is installed or not.

Airflow's OpenLineage provider asks operators for it, and catches what is raised here.
"""

from collections.abc import Sequence
from typing import Any

from airflow_provider_deltaforge.control.lineage import (
    TABLES_MAX,
    Lineage,
    LineageColumn,
    LineageInput,
    LineageOutput,
    lineage,
)
from airflow_provider_deltaforge.hooks.jobs import PipelineTask
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.storage.contract import Store


def task_lineage(store: Store, task: PipelineTask) -> Lineage:
    """Return what a task's pipeline reads and writes.

    Raises:
        DeltaForgeError: the document is wrong, a variable has no value, or the store is away.
    """
    return lineage(store, load(task.text(), task.whole_environment()))


def operator_lineage(pipelines: Sequence[Lineage]) -> Any:
    """Return an ``OperatorLineage``: tables with their schemas, destinations with their columns.

    Args:
        pipelines: of each what it reads and writes; none: nothing is known yet.
    """
    from airflow.providers.common.compat.openlineage.facet import (
        InputDataset,
        SchemaDatasetFacet,
        SchemaDatasetFacetFields,
    )
    from airflow.providers.openlineage.extractors import OperatorLineage

    # Tables and destinations that several pipelines share are named once.
    inputs = {(t.namespace, t.name): t for found in pipelines for t in found.inputs}
    outputs = {(o.namespace, o.name): o for found in pipelines for o in found.outputs}

    def schema(table: LineageInput) -> dict[str, Any]:
        columns = table.columns.items()
        fields = [SchemaDatasetFacetFields(name=name, type=kind) for name, kind in columns]
        return {"schema": SchemaDatasetFacet(fields=fields)}

    return OperatorLineage(
        inputs=[
            InputDataset(namespace=table.namespace, name=table.name, facets=schema(table))
            for table in list(inputs.values())[:TABLES_MAX]
        ],
        outputs=[_output(output) for output in outputs.values()],
    )


def _output(output: LineageOutput) -> Any:
    from airflow.providers.common.compat.openlineage.facet import (
        ColumnLineageDatasetFacet,
        Fields,
        OutputDataset,
    )

    columns = {
        name: Fields(inputFields=[_column(column) for column in made_of])
        for name, made_of in output.columns.items()
    }
    facets = {"columnLineage": ColumnLineageDatasetFacet(fields=columns)} if columns else {}
    return OutputDataset(namespace=output.namespace, name=output.name, facets=facets)


def _column(column: LineageColumn) -> Any:
    from airflow.providers.common.compat.openlineage.facet import InputField
    from openlineage.client.generated.column_lineage_dataset import Transformation

    subtype = "TRANSFORMATION" if column.is_masked else "IDENTITY"
    made = Transformation(type="DIRECT", subtype=subtype, masking=column.is_masked)
    place = {"namespace": column.table.namespace, "name": column.table.name}
    return InputField(**place, field=column.name, transformations=[made])
