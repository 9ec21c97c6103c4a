"""How to decode a table's rows: what the kernels need to know, made from a relation."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_deltaforge.schemas.table import Column, TableSchema
from airflow_provider_deltaforge.sources.patterns import TableMatcher
from airflow_provider_deltaforge.sources.postgres import column_kinds as k
from airflow_provider_deltaforge.sources.postgres.relation import Relation


@dataclass(frozen=True)
class TablePlan:
    """How one table's rows are decoded.

    Attributes:
        schema: the table as it stands where its rows were written.
        captured: somebody wants its rows.
        chains: per column its kind, and behind an array's the kind of its elements.
        key: places of the key's columns, in table order; empty without a key.
        identity: per column whether rows before a change carry it.
    """

    schema: TableSchema
    captured: bool
    chains: tuple[tuple[int, ...], ...] = ()
    key: tuple[int, ...] = ()
    identity: tuple[bool, ...] = ()


@dataclass(frozen=True)
class PlanSet:
    """The plans of a chunk. Picklable."""

    plans: tuple[TablePlan, ...] = field(default_factory=tuple)


class Planner:
    """Makes plans, and asks the catalog for what the log does not say.

    Args:
        db: the database's name.
        matcher: which tables are captured.
        connect: opens a connection to the database; used for a query or two, then closed.
        publication: says which columns of a table are published, for ``plan_of_table``.
    """

    def __init__(
        self,
        db: str,
        matcher: TableMatcher,
        connect: Callable[[], Any],
        publication: str | None = None,
    ) -> None:
        self._db = db
        self._matcher = matcher
        self._connect = connect
        self._publication = publication

    def plan(self, relation: Relation) -> TablePlan:
        """Return the plan of a table as a ``Relation`` message describes it.

        Raises:
            RetryableError: the catalog cannot be read now.
        """
        columns = tuple(
            Column(c.name, "text", "text", ordinal_position=i)
            for i, c in enumerate(relation.columns, 1)
        )
        key = tuple(i for i, c in enumerate(relation.columns) if c.is_key)
        names = tuple(columns[i].name for i in key)
        return TablePlan(
            schema=TableSchema(self._db, relation.schema, relation.table, columns, names),
            captured=self._matcher.matches(relation.schema, relation.table),
            chains=tuple((k.TEXT,) for _ in columns),
            key=key,
            identity=tuple(c.is_key for c in relation.columns),
        )
