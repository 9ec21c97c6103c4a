"""How to decode a table's rows: what the kernel needs to know, made from a table map."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.columns.json_text_kernel import SCALAR_BYTES_MAX
from airflow_provider_deltaforge.errors import SchemaError
from airflow_provider_deltaforge.events.schema import Column, TableSchema
from airflow_provider_deltaforge.events.table_names import qualified_name
from airflow_provider_deltaforge.sources.mysql import column_types as t
from airflow_provider_deltaforge.sources.mysql.binlog import column_kinds as k
from airflow_provider_deltaforge.sources.mysql.binlog.image_kernel import PlanArrays
from airflow_provider_deltaforge.sources.mysql.binlog.log_schema import schema_of
from airflow_provider_deltaforge.sources.mysql.binlog.table_map import (
    BINARY_COLLATION,
    LogColumn,
    TableMap,
    parse_columns,
)
from airflow_provider_deltaforge.sources.mysql.binlog.versioned_tables import (
    Period,
    listed_columns,
    marked,
    without_period,
)
from airflow_provider_deltaforge.sources.mysql.charsets import decode_text, method_of, table_of
from airflow_provider_deltaforge.sources.mysql.outbox_tables import Tag

# The kernels copy names and labels in words.
_MARGIN = bytes(8)
_WITH_META = (k.TIME, k.DATETIME, k.TIMESTAMP, k.BIT, k.ENUM, k.SET, k.JSON, k.GEOMETRY)
"""Kinds whose first parameter is that of the table map."""
_NATIVE = {row.name: row for row in t.BY_CODE[t.STRING] if row.size}
"""MariaDB's types that the log shows as BINARY of their size."""


@dataclass(frozen=True)
class TableDecodePlan:
    """How one table's rows are decoded.

    ``columns`` are (kind, p1, p2, p3), see ``column_kinds``; of an enum or set p2 counts within
    ``labels``, of a text ``DecodePlans`` fills it in. ``schema`` describes its rows, ``tagged``
    says which of them are outbox messages. ``compressed`` are the columns whose values are
    compressed one by one, ``computed`` those that the log may lack although they changed,
    ``null_by_default`` those that are NULL where an insert lacks them; ``hidden`` ones are not
    delivered, and ``period_end`` is ROW END of a table that keeps its history.
    """

    db: str
    table: str
    captured: bool
    columns: tuple[tuple[int, int, int, int], ...]
    names: tuple[str, ...] = ()
    charsets: tuple[str | None, ...] = ()
    labels: tuple[str, ...] = ()
    key: tuple[int, ...] = ()
    schema: TableSchema | None = None
    tagged: Tag | None = None
    compressed: tuple[int, ...] = ()
    computed: tuple[int, ...] = ()
    null_by_default: tuple[int, ...] = ()
    hidden: tuple[int, ...] = ()
    period_end: int = -1

    @cached_property
    def fixed(self) -> int:
        """Bytes of a row's JSON that do not depend on the row's length, both images and the key."""
        names = sum(len(json.dumps(name)) * 3 + SCALAR_BYTES_MAX for name in self.names)
        labels = sum(6 * len(label) * 4 + 2 for label in self.labels)
        padding = sum(2 * p2 for kind, _, p2, _ in self.columns if kind == k.BINARY)
        return 2 * (names + labels + padding) + 256

    @property
    def roles(self) -> list[int]:
        """The role of each column, see ``column_kinds``."""
        roles = [k.PLAIN] * len(self.columns)
        for place in self.computed:
            roles[place] = k.COMPUTED
        for place in self.null_by_default:
            roles[place] = k.NULL_BY_DEFAULT
        for place in self.hidden:
            roles[place] = k.HIDDEN
        return roles

    def with_decimal_numbers(self) -> "TableDecodePlan":
        """Return the plan that writes DECIMAL as a JSON number."""
        columns = tuple(
            (kind, p1, p2, 1 if kind == k.DECIMAL else p3) for kind, p1, p2, p3 in self.columns
        )
        return replace(self, columns=columns)


def needs_catalog(table: TableMap, *, mariadb: bool) -> bool:
    """Return whether the log alone cannot describe the table's columns."""
    return any(
        column.name is None
        or (column.unsigned is None and t.kind_of(column.type) == k.INT)
        or (column.collation is None and column.type in t.CHARACTER_CODES)
        or (column.labels is None and column.type in (t.ENUM, t.SET))
        or t.kind_of(column.type) in t.OLD_KINDS
        or (mariadb and _may_be_native(column))
        for column in table.columns
    )


def uncaptured_plan(db: str, table: str, body: bytes) -> TableDecodePlan:
    """Return a plan that only steps over rows, from a table map event's bytes behind its flags.

    Whatever the table holds ends nothing: rows that cannot be stepped over are not looked at, and
    each of their events counts as one row.
    """
    try:
        columns = tuple(_sized(column) for column in parse_columns(body))
    except SchemaError:
        columns = ()
    return TableDecodePlan(db, table, captured=False, columns=columns)


def passed_over(table: TableMap) -> TableDecodePlan:
    """Return a plan that only steps over the rows of a table whose columns are known."""
    columns = tuple(_sized(column) for column in table.columns)
    return TableDecodePlan(table.db, table.table, captured=False, columns=columns)


def captured_plan(
    table: TableMap,
    charset_names: Mapping[int, str],
    catalog: TableSchema | None,
    known_schema: TableSchema | None = None,
    period: Period | None = None,
) -> TableDecodePlan:
    """Return the plan of a captured table.

    Args:
        table: what the log says.
        charset_names: collation id to character set.
        catalog: the table as the server describes it now, where the log does not describe it.
        known_schema: the table as registry or catalog describe it, to name the rows' schema with;
            ``catalog`` if absent.
        period: the columns that say how long a row was current, if the table keeps its history.

    Raises:
        SchemaError: log and catalog disagree, or a column's type cannot be decoded.
    """
    whole, table = table, without_period(listed_columns(table, known_schema or catalog), period)
    described = _checked(table, catalog)
    columns, charsets, labels = _decoded(table, described, charset_names)
    names = tuple(
        column.name if column.name is not None else (known.name if known else "")
        for column, known in zip(table.columns, described, strict=True)
    )
    key = table.primary_key
    if key is None:
        places = {name: i for i, name in enumerate(names)}
        key = tuple(places[name] for name in catalog.primary_key) if catalog else ()
    # A log without names was decoded by the catalog's, so it is the catalog's table.
    schema = schema_of(table, charset_names, known_schema or catalog) or catalog
    if period is not None and schema is not None:
        schema = marked(schema, period)
    seen = len(table.columns)
    hidden = [_sized(column) for column in whole.columns[seen:]]
    return TableDecodePlan(
        table.db,
        table.table,
        captured=True,
        columns=(*columns, *hidden),
        names=(*names, *[""] * len(hidden)),
        charsets=(*charsets, *[None] * len(hidden)),
        labels=tuple(labels),
        key=key,
        schema=schema,
        compressed=tuple(i for i, column in enumerate(table.columns) if column.compressed),
        hidden=tuple(range(seen, seen + len(hidden))),
        period_end=period.end if period is not None else -1,
    )


def _decoded(
    table: TableMap, described: Sequence[Column | None], charset_names: Mapping[int, str]
) -> tuple[list[tuple[int, int, int, int]], list[str | None], list[str]]:
    """Return how each column is decoded, its character set, and the labels of all."""
    columns: list[tuple[int, int, int, int]] = []
    charsets: list[str | None] = []
    labels: list[str] = []
    for i, (column, known) in enumerate(zip(table.columns, described, strict=True)):
        charset = _charset(column, known, charset_names)
        where = f"{table.db}.{table.table}, column {column.name or (known and known.name) or i + 1}"
        try:
            kind, p1, p2, p3 = _kind(column, known, charset)
            if kind == k.TEXT:
                method_of(charset or "utf8mb4")
        except SchemaError as error:
            raise SchemaError(f"{where}: {error}") from error
        if kind in (k.ENUM, k.SET):
            texts = _labels(column, known, charset)
            p2, p3 = len(labels), len(texts)
            labels += texts
        columns.append((kind, p1, p2, p3))
        charsets.append(charset if kind == k.TEXT else None)
    return columns, charsets, labels


def computed_columns(schema: TableSchema | None) -> tuple[int, ...]:
    """Return the columns that are computed when they are read.

    MariaDB leaves them out of partial images although they changed; MySQL does not.
    """
    if schema is None:
        return ()
    virtual = ((i, column.extra or "") for i, column in enumerate(schema.columns))
    return tuple(i for i, extra in virtual if "VIRTUAL GENERATED" in extra.upper())


def null_by_default(table: TableMap) -> tuple[int, ...]:
    """Return the columns of a MySQL table that are NULL where the log of an insert lacks them.

    Texts, blobs, documents and shapes have no default but NULL or an expression, whose value the
    log has.
    """
    kinds = (t.BLOB, t.JSON, t.GEOMETRY)
    return tuple(i for i, c in enumerate(table.columns) if c.nullable and c.type in kinds)


def _checked(table: TableMap, catalog: TableSchema | None) -> Sequence[Column | None]:
    """Return the catalog's columns if they fit the log's, Nones if the log says everything."""
    name = qualified_name(table.db, table.table)
    if catalog is None:
        if not table.named:
            raise SchemaError(
                f"{name}: the log carries no column names and the catalog has no such table any "
                "more; set binlog_row_metadata=FULL on the server and snapshot the table again"
            )
        return [None] * len(table.columns)
    fits = len(catalog.columns) == len(table.columns) and all(
        known.data_type.lower() in t.names_of(column.type)
        and (column.name is None or column.name == known.name)
        for column, known in zip(table.columns, catalog.columns, strict=True)
    )
    if fits:
        return catalog.columns
    raise SchemaError(
        f"{name}: the {len(table.columns)} columns in the log do not match the "
        f"{len(catalog.columns)} of its description"
    )


def _may_be_native(column: LogColumn) -> bool:
    """Return whether a MariaDB column could be UUID or INET: the log shows them as BINARY."""
    binary = column.collation in (None, BINARY_COLLATION)
    return (
        column.type == t.STRING
        and binary
        and any(column.meta == row.size for row in _NATIVE.values())
    )


def _charset(
    column: LogColumn, known: Column | None, charset_names: Mapping[int, str]
) -> str | None:
    if column.collation is not None:
        if column.collation == BINARY_COLLATION:
            return "binary"
        return charset_names.get(column.collation, f"of collation {column.collation}")
    if known is not None and column.type in t.CHARACTER_CODES:
        if known.charset is None and known.data_type in t.TEXT_TYPES:
            raise SchemaError("neither log nor schema say in which character set it is")
        return known.charset or "binary"
    return known.charset if known is not None else None


def _sized(column: LogColumn) -> tuple[int, int, int, int]:
    """Return kind and parameters as far as a value's size goes."""
    code, meta = column.type, column.meta
    kind = t.kind_of(code)
    if kind is None:
        raise SchemaError(
            f"a column of type code {code} cannot be read from the log; report it, with the "
            "server's version"
        )
    if kind == k.INT:
        return kind, t.BY_CODE[code][0].size, 0, 0
    if kind == k.DECIMAL:
        return kind, meta >> 8, meta & 0xFF, 0
    if kind in (k.TEXT, k.BINARY):
        # The parameter is the length of the longest value, or the bytes of each one's length.
        is_longest = t.METADATA_BYTES[code] > 1
        return kind, (2 if meta + column.compressed > 255 else 1) if is_longest else meta, 0, 0
    return kind, meta if kind in _WITH_META else 0, 0, 0


def _kind(column: LogColumn, known: Column | None, charset: str | None) -> tuple[int, ...]:
    kind, p1, p2, p3 = _sized(column)
    if kind in t.OLD_KINDS and (known is None or known.datetime_precision):
        raise SchemaError(
            "it holds fractions of seconds in the format of before MariaDB 10.1, whose size the "
            "log does not say; rebuild the table with ALTER TABLE … FORCE"
        )
    if kind == k.INT:
        unsigned = (
            column.unsigned if column.unsigned is not None else bool(known and known.unsigned)
        )
        return kind, p1, int(unsigned), 0
    if column.type == t.STRING and known is not None and known.data_type.lower() in _NATIVE:
        native = _NATIVE[known.data_type.lower()]
        return native.kind, p1, native.size, 0
    if column.type in t.CHARACTER_CODES:
        if charset == "binary":
            return k.BINARY, p1, column.meta if column.type == t.STRING else 0, 0
        return k.TEXT, p1, 0, 0
    return kind, p1, p2, p3


def _labels(column: LogColumn, known: Column | None, charset: str | None) -> list[str]:
    if column.labels is not None:
        texts = [decode_text(label, charset or "utf8mb4") for label in column.labels]
    else:
        texts = list(known.labels) if known is not None else []
    return texts


class PlanNames(NamedTuple):
    """The distinct names of databases and tables, and which of them each plan has (int32)."""

    dbs: pa.StringArray
    tables: pa.StringArray
    db_of: Any
    table_of: Any


@dataclass(frozen=True)
class DecodePlans:
    """The plans of a segment, laid out for the kernel. Picklable; the arrays are made on demand."""

    plans: tuple[TableDecodePlan, ...] = field(default_factory=tuple)

    def __getstate__(self) -> dict[str, Any]:
        return {"plans": self.plans}

    @cached_property
    def width(self) -> int:
        """Columns of the widest table."""
        return max((len(plan.columns) for plan in self.plans), default=0)

    @cached_property
    def names(self) -> PlanNames:
        """What the tables are called."""
        dbs: dict[str, int] = {}
        tables: dict[str, int] = {}
        db_of = [dbs.setdefault(plan.db, len(dbs)) for plan in self.plans]
        table_of = [tables.setdefault(plan.table, len(tables)) for plan in self.plans]
        return PlanNames(
            pa.array(dbs, pa.utf8()),
            pa.array(tables, pa.utf8()),
            np.array(db_of, np.int32),
            np.array(table_of, np.int32),
        )

    @cached_property
    def schemas(self) -> tuple[TableSchema | None, ...]:
        """What the rows of each table look like."""
        return tuple(plan.schema for plan in self.plans)

    @cached_property
    def tagged(self) -> bool:
        """Whether rows of any table are outbox messages."""
        return any(plan.tagged for plan in self.plans)

    @cached_property
    def compressed(self) -> Any:
        """Whether a captured table has compressed values, a bool array."""
        return np.array([bool(plan.captured and plan.compressed) for plan in self.plans], np.bool_)

    @cached_property
    def arrays(self) -> PlanArrays:
        """The kernel's view of the plans."""
        names: list[bytes] = []
        labels: list[bytes] = []
        columns: list[tuple[int, int, int, int]] = []
        tables: dict[str, int] = {}
        charsets: list[Any] = [np.zeros(0, np.uint32)]
        for plan in self.plans:
            blank = ("",) * len(plan.columns)
            names += [b"," + _escaped(name) + b":" for name in plan.names or blank]
            for i, (kind, p1, p2, p3) in enumerate(plan.columns):
                if kind == k.TEXT and plan.captured:
                    charset = plan.charsets[i] or "utf8mb4"
                    if charset not in tables:
                        tables[charset] = sum(map(len, charsets))
                        charsets.append(table_of(charset))
                    columns.append((kind, p1, method_of(charset) | tables[charset] << 8, p3))
                elif kind in (k.ENUM, k.SET):
                    columns.append((kind, p1, len(labels) + p2, p3))
                else:
                    columns.append((kind, p1, p2, p3))
            labels += [_escaped(label)[1:-1] for label in plan.labels]
        keys = [place for plan in self.plans for place in plan.key]
        roles = [role for plan in self.plans for role in plan.roles]
        return PlanArrays(
            first=_starts(len(plan.columns) for plan in self.plans),
            columns=k.described(columns, _starts(map(len, names)), roles),
            names=np.frombuffer(b"".join(names) + _MARGIN, np.uint8),
            labels=np.frombuffer(b"".join(labels) + _MARGIN, np.uint8),
            label_offsets=_starts(map(len, labels)),
            key_first=_starts(len(plan.key) for plan in self.plans),
            key_columns=np.array(keys, np.int64),
            captured=np.array([plan.captured for plan in self.plans], np.bool_),
            period_end=np.array([plan.period_end for plan in self.plans], np.int64),
            hides=np.array([bool(p.hidden) or p.period_end >= 0 for p in self.plans], np.bool_),
            fixed=np.array([plan.fixed for plan in self.plans], np.int64),
            charsets=np.concatenate(charsets),
        )


def _escaped(text: str) -> bytes:
    """Return a text as a JSON string, the way the kernels escape."""
    return json.dumps(text, ensure_ascii=False).encode()


def _starts(lengths: Any) -> Any:
    return np.array([0, *accumulate(lengths)], np.int64)
