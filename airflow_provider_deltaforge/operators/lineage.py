"""A pipeline's lineage in the classes of OpenLineage, whose provider is installed or not.

Airflow's OpenLineage provider asks operators for it, and catches what is raised here.
"""

from typing import Any

from airflow_provider_deltaforge.control.lineage import (
    LineageColumn,
    LineageInput,
    LineageOutput,
    lineage,
)
from airflow_provider_deltaforge.hooks.jobs import PipelineTask
from airflow_provider_deltaforge.spec.load import load


def operator_lineage(task: PipelineTask | None) -> Any:
    """Return an ``OperatorLineage``: tables with their schemas, destinations with their columns.

    Args:
        task: what it does; None: nothing, or nothing that is known yet.

    Raises:
        DeltaForgeError: the document is wrong, a variable has no value, or the store is away.
    """
    from airflow.providers.common.compat.openlineage.facet import (
        InputDataset,
        SchemaDatasetFacet,
        SchemaDatasetFacetFields,
    )
    from airflow.providers.openlineage.extractors import OperatorLineage

    if task is None:
        return OperatorLineage()
    pipeline = load(task.text(), task.whole_environment())
    with task.hook().store() as store:
        found = lineage(store, pipeline)

    def schema(table: LineageInput) -> dict[str, Any]:
        columns = table.columns.items()
        fields = [SchemaDatasetFacetFields(name=name, type=kind) for name, kind in columns]
        return {"schema": SchemaDatasetFacet(fields=fields)}

    return OperatorLineage(
        inputs=[
            InputDataset(namespace=table.namespace, name=table.name, facets=schema(table))
            for table in found.inputs
        ],
        outputs=[_output(output) for output in found.outputs],
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
