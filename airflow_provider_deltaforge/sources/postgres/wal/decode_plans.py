"""How to decode a table's rows: what the kernels need to know, made from a relation."""

import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from airflow_provider_deltaforge.errors import RetryableError, TableError
from airflow_provider_deltaforge.events.schema import Column, TableSchema
from airflow_provider_deltaforge.events.table_names import qualified_name
from airflow_provider_deltaforge.sources.postgres import catalog
from airflow_provider_deltaforge.sources.postgres.catalog import (
    ColumnFacts,
    TableCatalog,
    TypeFacts,
    Types,
)
from airflow_provider_deltaforge.sources.postgres.column_types import length_of, precision_of
from airflow_provider_deltaforge.sources.postgres.tables import quote
from airflow_provider_deltaforge.sources.postgres.wal.messages import Relation, RelationColumn
from airflow_provider_deltaforge.spec.patterns import TableMatcher

if TYPE_CHECKING:
    from airflow_provider_deltaforge.sources.postgres.wal.row_kernel import WalPlanArrays

_log = logging.getLogger(__name__)

_VALUE_BYTES = 64
"""What a value's JSON takes at most beyond six bytes for each byte of its text."""
_MARGIN = bytes(8)  # The kernels copy names in words.


@dataclass(frozen=True)
class WalTablePlan:
    """How one table's rows are decoded.

    Attributes:
        schema: the table as it stands where its rows were written.
        captured: somebody wants its rows.
        chains: per column its kind, and behind an array's the kind of its elements.
        key: places of the key's columns, in table order; empty without a key.
        identity: per column the bits of ``row_kernel.CARRIED`` and ``DOUBTFUL``.
        oid: of the table; its name may be another's by now.
    """

    schema: TableSchema
    captured: bool
    chains: tuple[tuple[int, ...], ...] = ()
    key: tuple[int, ...] = ()
    identity: tuple[int, ...] = ()
    oid: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names, in the order of their values."""
        return tuple(column.name for column in self.schema.columns)

    @property
    def select(self) -> str:
        """The columns as a SELECT names them."""
        return ", ".join(map(quote, self.names))

    @cached_property
    def escaped_names(self) -> tuple[bytes, ...]:
        """``,"name":`` of each column."""
        return tuple(b"," + json.dumps(n, ensure_ascii=False).encode() + b":" for n in self.names)

    @property
    def fixed(self) -> int:
        """Bytes of a row's JSON that do not depend on the row's length."""
        return sum(len(name) + _VALUE_BYTES for name in self.escaped_names) + _VALUE_BYTES


@dataclass(frozen=True)
class WalDecodePlans:
    """The plans of a segment, laid out for the kernels. Picklable; arrays are made on demand."""

    plans: tuple[WalTablePlan, ...] = field(default_factory=tuple)

    def __getstate__(self) -> dict[str, Any]:
        return {"plans": self.plans}

    @cached_property
    def schemas(self) -> tuple[TableSchema, ...]:
        """What the rows of each table look like."""
        return tuple(plan.schema for plan in self.plans)

    @cached_property
    def _width(self) -> int:
        """Columns of the widest table."""
        return max((len(plan.chains) for plan in self.plans), default=0)

    @cached_property
    def _levels(self) -> int:
        """Of the deepest column."""
        return max((len(c) for plan in self.plans for c in plan.chains), default=0)

    @property
    def marks(self) -> Any:
        """Scratch of the kernels for a row's values: six numbers a column."""
        return np.empty(6 * self._width + 6, np.int64)

    def scratch(self, longest: int) -> Any:
        """Return scratch for unescaped copies of a value of ``longest`` bytes."""
        return np.empty((1 + self._levels) * longest + _VALUE_BYTES, np.uint8)

    @cached_property
    def arrays(self) -> "WalPlanArrays":
        """The kernels' view of the plans."""
        # Imported where rows are decoded: a document is read without the kernels' compiler.
        from airflow_provider_deltaforge.sources.postgres.wal.row_kernel import WalPlanArrays

        plans = self.plans
        chains = [chain for plan in plans for chain in plan.chains]
        names = [name for plan in plans for name in plan.escaped_names]
        identity = [carried for plan in plans for carried in plan.identity]
        return WalPlanArrays(
            first=_starts(len(plan.chains) for plan in plans),
            chains=np.array([kind for chain in chains for kind in chain] or [0], np.int64),
            chain_at=_starts(map(len, chains)),
            names=np.frombuffer(b"".join(names) + _MARGIN, np.uint8),
            name_ends=_starts(map(len, names)),
            identity=np.array(identity or [0], np.uint8),
            key_first=_starts(len(plan.key) for plan in plans),
            key_columns=np.array([place for plan in plans for place in plan.key], np.int64),
            fixed=np.array([plan.fixed for plan in plans], np.int64),
        )


def _starts(lengths: Any) -> Any:
    return np.array([0, *accumulate(lengths)], np.int64)


class Planner:
    """Makes plans, and asks the catalog for what the log does not say.

    The catalog is that of now, the relation that of the log's position: what both describe alike
    is taken from the catalog, and where it knows the table no more, the relation suffices.

    Args:
        db: the database's name.
        matcher: which tables are captured.
        connect: opens a connection to the database; used for a query or two, then closed.
        publication: says which columns of a table are published, for ``plan_of_table``.
        decimal_numbers: ``numeric`` becomes a JSON number, not a string.
    """

    def __init__(
        self,
        db: str,
        matcher: TableMatcher,
        connect: Callable[[], Any],
        publication: str | None = None,
        *,
        decimal_numbers: bool = False,
    ) -> None:
        self._db = db
        self._matcher = matcher
        self._connect = connect
        self._publication = publication
        self._types = Types(decimal_numbers=decimal_numbers)
        self._keys: dict[int, tuple[str, ...]] = {}
        self._torn: set[int] = set()

    def plan(self, relation: Relation) -> WalTablePlan:
        """Return the plan of a table as a ``Relation`` message describes it.

        Raises:
            RetryableError: the catalog cannot be read now.
            TableError: how to decode its rows is unknown.
        """
        name = qualified_name(relation.schema, relation.table)
        if not self._matcher.matches(relation.schema, relation.table):
            schema = TableSchema(self._db, relation.schema, relation.table, ())
            return WalTablePlan(schema, captured=False)
        if not relation.readable:
            raise TableError(f"{name}: the log's description of its columns cannot be read", name)
        with self._connect() as connection, catalog.asked(connection):
            facts = catalog.table_by_oid(connection, relation.oid)
            unknown = self._learn(connection, relation)
        if unknown:
            raise TableError(
                f"{name}: types were dropped before their rows were read, and the log does not "
                f"say what they were; the columns are {', '.join(map(repr, unknown))}",
                name,
            )
        return self._made(relation, facts)

    def plan_of_table(self, schema: str, table: str) -> WalTablePlan | None:
        """Return the plan of a table as it is now, None if there is none of this name.

        It has the columns the log's rows have: generated ones only if they are published.

        Raises:
            RetryableError: the catalog cannot be read now.
        """
        with self._connect() as connection, catalog.asked(connection):
            facts = catalog.table_by_name(connection, schema, table)
            if facts is None:
                return None
            name = (schema, table)
            published = catalog.published_columns(connection, self._publication, facts, name)
            relation = _relation_of(name, facts, published)
            if self._learn(connection, relation):
                raise RetryableError(f"{schema}.{table} was altered while it was looked at")
        return self._made(relation, facts)

    def _learn(self, connection: Any, relation: Relation) -> list[str]:
        """Learn the types of a relation; return the columns whose types nobody knows."""
        self._types.learn(connection, ((c.type_oid, c.typmod) for c in relation.columns))
        return unknown_columns(connection, self._types, relation.columns)

    def _made(self, relation: Relation, facts: TableCatalog | None) -> WalTablePlan:
        key = self._key(relation, facts)
        columns = tuple(
            self._column(place, column, facts.columns.get(column.name) if facts else None)
            for place, column in enumerate(relation.columns, 1)
        )
        return WalTablePlan(
            schema=TableSchema(
                self._db, relation.schema, relation.table, columns, _primary(relation, facts, key)
            ),
            captured=self._matcher.matches(relation.schema, relation.table),
            chains=tuple(self._types.chain(c.type_oid, c.typmod) for c in relation.columns),
            key=tuple(i for i, c in enumerate(relation.columns) if c.name in key),
            identity=self._identity(relation, facts),
            oid=relation.oid,
        )

    def _identity(self, relation: Relation, facts: TableCatalog | None) -> tuple[int, ...]:
        """Return which columns rows before a change carry, see ``WalTablePlan``.

        A partition logs by its own replica identity what comes under the table's. That of now may
        be another than that of then, so a partitioned table is always in doubt.
        """
        from airflow_provider_deltaforge.sources.postgres.wal.row_kernel import CARRIED, DOUBTFUL

        carried = tuple(CARRIED * column.is_key for column in relation.columns)
        if relation.replica_identity != "f" or (facts is not None and not facts.partitioned):
            return carried
        keys = {*self._keys.get(relation.oid, ()), *(facts.partition_keys if facts else ())}
        doubtful = CARRIED | DOUBTFUL
        return tuple(CARRIED if c.name in keys else doubtful for c in relation.columns)

    def _key(self, relation: Relation, facts: TableCatalog | None) -> tuple[str, ...]:
        """Return the names of the key's columns.

        Deletes must have the key their inserts had: so it is the primary key only where rows
        before a change carry it, which with REPLICA IDENTITY USING INDEX another index's do not.
        A part of a key is none: where the log lacks a generated column of it, rows share that part.
        """
        identity = tuple(column.name for column in relation.columns if column.is_key)
        names = {column.name for column in relation.columns}
        letter = relation.replica_identity
        if facts is not None:
            self._keys[relation.oid] = facts.primary_key
            index = facts.primary_key if letter == "d" else facts.identity_key
            self._torn.discard(relation.oid)
            if any(facts.columns[name].generated for name in set(index) - names):
                self._torn.add(relation.oid)
        primary, by_index = self._keys.get(relation.oid, ()), letter in "di"
        carried = set(identity) if by_index else names
        if letter != "d" and primary and carried.issuperset(primary):
            return primary
        if by_index and relation.oid not in self._torn:
            return identity
        _log.warning(
            "%s.%s: its log does not say which columns are its key, and the catalog has none that "
            "fits; its events carry no key. Give it a primary key to have one",
            relation.schema,
            relation.table,
        )
        return ()

    def _column(self, place: int, column: RelationColumn, now: ColumnFacts | None) -> Column:
        if now is not None and (now.type_oid, now.typmod) != (column.type_oid, column.typmod):
            now = None
        oid, typmod = column.type_oid, column.typmod
        facts = self._types.facts(oid)
        element = self._types.facts(facts.element) if facts and facts.element else None
        precision, scale = precision_of(oid, typmod)
        return Column(
            name=column.name,
            data_type=facts.described if facts else f"type {oid}",
            column_type=self._types.printed(oid, typmod),
            nullable=not now.not_null if now else True,
            ordinal_position=place,
            default_value=now.default if now else None,
            type_oid=oid,
            is_array=facts is not None and facts.element is not None,
            element_type=element.name if element else None,
            char_max_length=length_of(oid, typmod),
            numeric_precision=precision,
            numeric_scale=scale,
            is_identity=bool(now and now.identity),
            identity_generation=_IDENTITIES.get(now.identity) if now else None,
            is_generated=bool(now and now.generated),
            udt_name=facts.name if facts else None,
        )


_IDENTITIES = {"a": "ALWAYS", "d": "BY DEFAULT"}


def _primary(
    relation: Relation, facts: TableCatalog | None, key: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the primary key, in its own order where the catalog's fits the log."""
    primary = facts.primary_key if facts is not None else key
    if relation.replica_identity == "d" and set(primary) != set(key):
        return key
    return primary if set(primary) <= {column.name for column in relation.columns} else key


def _relation_of(name: tuple[str, str], facts: TableCatalog, published: frozenset[str]) -> Relation:
    """Return what the log would say of a table now."""
    identity = tuple(facts.columns) if facts.replica_identity == "f" else facts.identity_key
    columns = tuple(
        RelationColumn(column, f.type_oid, f.typmod, column in identity)
        for column, f in facts.columns.items()
        if column in published
    )
    return Relation(facts.oid, *name, facts.replica_identity, columns)


_BUILT_IN = (
    "SELECT oid::int FROM pg_type WHERE typnamespace = 'pg_catalog'::regnamespace AND typname = %s"
)
_ARRAY = "_"
_DOUBTFUL = frozenset({"bit", "hstore"})


def unknown_columns(connection: Any, types: Types, columns: Iterable[RelationColumn]) -> list[str]:
    """Return the names of the columns whose type neither catalog nor log holds.

    The log names the type of each column that has no built-in one; for a domain it names the type
    below it. That is enough for most types that were dropped before their values were read: enums,
    ranges and composites are text, and a domain is what it was made of. It does not tell an array
    from a type whose name begins like an array's, nor how long a domain's ``bit`` is. Those are
    not guessed.

    Args:
        connection: to the database.
        types: has asked the catalog for all of them, and takes in what the log knows.
        columns: as the log describes them.
    """
    return [
        column.name
        for column in columns
        if types.facts(column.type_oid) is None and not _learn_from_log(connection, types, column)
    ]


def _learn_from_log(connection: Any, types: Types, column: RelationColumn) -> bool:
    schema, name = column.type_schema, column.type_name
    if not name or name in _DOUBTFUL:
        return False
    base = None
    if not schema:
        row = connection.execute(_BUILT_IN, (name,)).fetchone()
        if row is None:
            return False
        (base,) = row
        types.learn(connection, [(base, -1)])
    elif name.startswith(_ARRAY):
        return False
    facts = TypeFacts(
        name=name,
        described=f"{schema}.{name}" if schema else name,
        base=base,
        typmod=-1,
        element=None,
        delimiter=ord(","),
        printer="",
    )
    types.add(column.type_oid, column.typmod, facts)
    return True
