"""What was told of a table the first time its rows were read.

The log describes columns and key, the catalog adds defaults, NOT NULL and identity, as they are
now. Rows that are read again must have the schema they had before, so what is registered at the
place that is read counts as long as it is alike in all that the log knows. The log does not tell of
a change of the other attributes alone: it is registered with the next change that it tells of,
with the next copy of the table, or when somebody reloads.
"""

from dataclasses import replace

from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.schemas.history import SchemaHistory
from airflow_provider_deltaforge.sources.postgres.positions import WalPosition


def as_told(made: TableSchema, history: SchemaHistory | None, commit: WalPosition) -> TableSchema:
    """Return the schema that a table's rows have.

    Args:
        made: of the log's description and the catalog of now.
        history: what was registered; None without a state store.
        commit: where the rows' transaction commits.
    """
    if history is None:
        return made
    known = history.schema_at(made.db, made.schema, made.table, commit.as_json())
    return known if known is not None and _in_log(known) == _in_log(made) else made


def _in_log(schema: TableSchema) -> TableSchema:
    """Return what the log itself knows of a table."""
    columns = tuple(
        replace(
            column,
            nullable=True,
            default_value=None,
            is_identity=False,
            identity_generation=None,
            is_generated=False,
        )
        for column in schema.columns
    )
    return replace(schema, columns=columns)
