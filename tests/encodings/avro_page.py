"""``python -m tests.encodings.avro_page``: print the tables of types of ``docs/avro.md``."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from airflow_provider_deltaforge.encodings.avro.column_types import Modes, type_of
from airflow_provider_deltaforge.events.schema import Column

PAGE = Path(__file__).parents[2] / "docs" / "avro.md"

OTHER = Modes("long", "enum", "timestamp")
_NAMES = {"deltaforge.Geometry": "record `Geometry` of `srid` (long) and `wkb` (bytes)"}


def _mysql(*kinds: str, **more: Any) -> Iterator[tuple[str, Column]]:
    for kind in kinds:
        yield kind, Column("c", kind.split("(")[0].split()[0], kind, **more)


MYSQL = (
    *_mysql("tinyint", "smallint", "mediumint", "int", "year"),
    *_mysql("bigint"),
    *_mysql("int unsigned", "bigint unsigned", unsigned=True),
    *_mysql("float", "double"),
    *_mysql("decimal(10,2)", numeric_precision=10, numeric_scale=2),
    *_mysql("decimal(65,30)", numeric_precision=65, numeric_scale=30),
    *_mysql("char", "varchar", "text", "set", "json"),
    *_mysql("enum('a','b')", labels=("a", "b")),
    *_mysql("binary", "varbinary", "blob", "vector"),
    *_mysql("date"),
    *_mysql("time(3)", "datetime(3)", "timestamp(3)", datetime_precision=3),
    *_mysql("time(6)", "datetime(6)", "timestamp(6)", datetime_precision=6),
    *_mysql("bit(1)", "bit(9)", "geometry", "uuid", "inet6"),
)


def _postgres(*kinds: str, **more: Any) -> Iterator[tuple[str, Column]]:
    for kind in kinds:
        yield kind, Column("c", kind, kind, type_oid=1, udt_name=kind.split("(")[0], **more)


def _arrays(*elements: str) -> Iterator[tuple[str, Column]]:
    for element in elements:
        column = Column("c", "ARRAY", "", type_oid=1, is_array=True, element_type=element)
        yield f"{element}[]", column


POSTGRES = (
    *_postgres("bool", "int2", "int4", "int8", "oid", "float4", "float8"),
    *_postgres("numeric(10,2)", numeric_precision=10, numeric_scale=2),
    *_postgres("numeric"),
    *_postgres("numeric(50,2)", numeric_precision=50, numeric_scale=2),
    *_postgres("text", "varchar", "bpchar", "citext", "json", "jsonb", "uuid", "bytea"),
    *_postgres("date", "time", "timestamp", "timestamptz", "timetz", "interval"),
    *_postgres("bit(1)", "bit(9)", "bit(65)", "varbit", "hstore"),
    *_postgres("inet", "xml", "tsvector", "point", "int4range", "money", "mood"),
    *_arrays("int4", "text", "timestamptz", "jsonb"),
)
TURSO = tuple(
    (declared or "none", Column("c", kind, declared))
    for declared, kind in (
        ("INTEGER", "integer"),
        ("REAL", "real"),
        ("TEXT", "text"),
        ("BLOB", "blob"),
        ("NUMERIC", "numeric"),
        ("", "blob"),
    )
)


def tables() -> dict[str, str]:
    """Return each source's table, by the name of its connector."""
    return {
        "mysql": table("mysql", MYSQL),
        "postgresql": table("postgresql", POSTGRES),
        "turso": table("turso", TURSO),
    }


def table(connector: str, columns: Iterable[tuple[str, Column]]) -> str:
    """Return one source's table, types of one Avro type in one row."""
    rows: dict[str, list[str]] = {}
    for name, column in columns:
        usual = shown(type_of(column, connector, Modes()).schema)
        other = shown(type_of(column, connector, OTHER).schema)
        told = usual if usual == other else f"{usual}, or {other} by its mode"
        rows.setdefault(told, []).append(f"`{name}`")
    lines = ["| column | Avro |", "|---|---|"]
    lines += [f"| {' '.join(names)} | {told} |" for told, names in rows.items()]
    return "\n".join(lines)


def shown(schema: Any) -> str:  # noqa: PLR0911 - a case for each form
    """Return a type in words."""
    if isinstance(schema, list):
        return "anything: null, boolean, long, double, string, or a record `Json` of its text"
    if not isinstance(schema, dict):
        return str(schema)
    if schema["type"] == "record":
        return _NAMES[f"{schema['namespace']}.{schema['name']}"]
    if schema["type"] == "array":
        return f"array of {shown(schema['items'][1])}"
    if schema["type"] == "map":
        return "map of string"
    if schema["type"] == "enum":
        return f"enum `{schema['name']}`"
    if schema["logicalType"] == "decimal":
        return f"bytes, decimal({schema['precision']},{schema['scale']})"
    return f"{schema['type']}, {schema['logicalType']}"


if __name__ == "__main__":
    for connector, text in tables().items():
        print(f"### {connector}\n\n{text}\n")
