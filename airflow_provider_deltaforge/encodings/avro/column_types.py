"""Which Avro type a column has: ``docs/avro.md`` shows the tables, and a test holds them true."""

import datetime
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from airflow_provider_deltaforge.encodings.avro import objects, scalars
from airflow_provider_deltaforge.encodings.avro.names import is_legal, legal
from airflow_provider_deltaforge.encodings.avro.scalars import Writer
from airflow_provider_deltaforge.events.schema import Column, TypeSystem

DECIMAL_MAX = 38
"""Digits that every common reader's decimal has; more are text."""

_MILLIS_MAX = 3
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_MICROSECOND = datetime.timedelta(microseconds=1)
_LENGTH = re.compile(r"\((\d+)")


@dataclass(frozen=True, slots=True)
class Modes:
    """What a sink's document chooses."""

    unsigned_bigint: Literal["string", "long"] = "string"
    enum: Literal["string", "enum"] = "string"
    naive_timestamp: Literal["string", "timestamp"] = "string"


@dataclass(frozen=True, slots=True)
class AvroType:
    """A type: its schema without null, and what writes a column of it.

    Attributes:
        schema: as JSON.
        write: see ``scalars``.
        convert: writes one value inside of a list; None: not used there.
        whole: the schema is a union that holds null already.
    """

    schema: Any
    write: Writer
    convert: objects.Convert | None = field(default=None, compare=False)
    whole: bool = False

    def named_for(self, field_name: str) -> "AvroType":
        """Return the type of a field; an enum bears its name, so that no two of a row share one."""
        if not (isinstance(self.schema, dict) and self.schema["type"] == "enum"):
            return self
        return replace(self, schema={**self.schema, "name": f"{field_name}_enum"})


def _logical(kind: str, name: str) -> dict[str, Any]:
    return {"type": kind, "logicalType": name}


def _object(schema: Any, convert: objects.Convert) -> AvroType:
    return AvroType(schema, objects.written(schema, convert), convert)


def _padded(text: str) -> str:
    """Return a time with six digits of a second, or none: Python 3.10 takes no other number."""
    whole, point, fraction = text.partition(".")
    return f"{whole}{point}{fraction:0<6}" if point else text


_INT = AvroType("int", scalars.int_, objects.exactly(int))
_LONG = AvroType("long", scalars.long_, objects.exactly(int))
_FLOAT = AvroType("float", scalars.float_, objects.as_float)
_DOUBLE = AvroType("double", scalars.double, objects.as_float)
_BOOLEAN = AvroType("boolean", scalars.boolean, objects.exactly(bool))
_STRING = AvroType("string", scalars.string, objects.exactly(str))
_JSON = AvroType("string", scalars.json_text)
_UUID = AvroType(_logical("string", "uuid"), scalars.uuid, objects.as_uuid)
_DATE = AvroType(_logical("int", "date"), scalars.date, datetime.date.fromisoformat)
_TIME_MILLIS = AvroType(_logical("int", "time-millis"), scalars.time_millis)
_TIME_MICROS = AvroType(
    _logical("long", "time-micros"),
    scalars.time_micros,
    lambda text: datetime.time.fromisoformat(_padded(text)),
)
_STAMP_MILLIS = AvroType(_logical("long", "timestamp-millis"), scalars.timestamp_millis)
_STAMP_MICROS = AvroType(
    _logical("long", "timestamp-micros"),
    scalars.timestamp_micros,
    lambda text: (
        datetime.datetime.fromisoformat(_padded(text.removesuffix("Z")) + "+00:00") - _EPOCH
    ) // _MICROSECOND,
)  # fmt: skip

JSON_RECORD = {
    "type": "record",
    "name": "Json",
    "namespace": "deltaforge",
    "fields": [{"name": "text", "type": "string"}],
}
ANYTHING = AvroType(
    ["null", "boolean", "long", "double", "string", JSON_RECORD], scalars.anything, whole=True
)
"""A value of which nothing is known beforehand."""

_GEOMETRY = {
    "type": "record",
    "name": "Geometry",
    "namespace": "deltaforge",
    "fields": [{"name": "srid", "type": "long"}, {"name": "wkb", "type": "bytes"}],
}


def type_of(column: Column, type_system: TypeSystem, modes: Modes) -> AvroType:
    """Return the type of a column; text where the catalog's type is not known here."""
    return _TYPE_SYSTEMS[type_system](column, modes)


_MYSQL: dict[str, Callable[[], AvroType]] = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "year"), lambda: _INT),
    "float": lambda: _FLOAT,
    "double": lambda: _DOUBLE,
    "date": lambda: _DATE,
    "json": lambda: _JSON,
    "uuid": lambda: _UUID,
    **dict.fromkeys(
        ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "vector"),
        lambda: _object("bytes", objects.from_base64),
    ),
    **dict.fromkeys(
        (
            *("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring"),
            *("multipolygon", "geometrycollection", "geomcollection"),
        ),
        lambda: _object(_GEOMETRY, objects.geometry),
    ),
}


def _of_mysql(column: Column, modes: Modes) -> AvroType:
    chosen = _MYSQL_CHOSEN.get(column.data_type)
    return chosen(column, modes) if chosen else _MYSQL.get(column.data_type, lambda: _STRING)()


def _mysql_bigint(column: Column, modes: Modes) -> AvroType:
    return _STRING if column.unsigned and modes.unsigned_bigint == "string" else _LONG


def _mysql_timestamp(column: Column, _modes: Modes) -> AvroType:
    return _STAMP_MICROS if _is_fine(column) else _STAMP_MILLIS


def _mysql_datetime(column: Column, modes: Modes) -> AvroType:
    return _STRING if modes.naive_timestamp == "string" else _mysql_timestamp(column, modes)


def _is_fine(column: Column) -> bool:
    """Return whether milliseconds are too coarse for a column."""
    return (column.datetime_precision or 0) > _MILLIS_MAX


_MYSQL_CHOSEN: dict[str, Callable[[Column, Modes], AvroType]] = {
    "int": lambda column, _: _LONG if column.unsigned else _INT,
    "bigint": _mysql_bigint,
    "decimal": lambda column, _: _decimal(column.numeric_precision, column.numeric_scale),
    "time": lambda column, _: _TIME_MICROS if _is_fine(column) else _TIME_MILLIS,
    "timestamp": _mysql_timestamp,
    "datetime": _mysql_datetime,
    "bit": lambda column, _: _bits(_length(column, 1)),
    "enum": lambda column, modes: _enum(column) if modes.enum == "enum" else _STRING,
}


_POSTGRES: dict[str, Callable[[], AvroType]] = {
    "bool": lambda: _BOOLEAN,
    **dict.fromkeys(("int2", "int4"), lambda: _INT),
    **dict.fromkeys(("int8", "oid"), lambda: _LONG),
    "float4": lambda: _FLOAT,
    "float8": lambda: _DOUBLE,
    "bytea": lambda: _object("bytes", objects.from_base64),
    "date": lambda: _DATE,
    "time": lambda: _TIME_MICROS,
    "timestamptz": lambda: _STAMP_MICROS,
    **dict.fromkeys(("json", "jsonb"), lambda: _JSON),
    "uuid": lambda: _UUID,
    "hstore": lambda: _object({"type": "map", "values": ["null", "string"]}, objects.texts_by_text),
    **dict.fromkeys(
        ("int2vector", "oidvector"),
        lambda: _object({"type": "array", "items": "long"}, objects.listed(objects.exactly(int))),
    ),
}
_BITS_MAX = 64


def _of_postgres(column: Column, modes: Modes) -> AvroType:
    if column.is_array and column.udt_name not in ("int2vector", "oidvector"):
        return _array(column.element_type or "", modes)
    kind = column.udt_name or ""
    if kind == "numeric":
        return _decimal(column.numeric_precision, column.numeric_scale)
    if kind == "bit":
        length = _length(column, 1)
        return _bits(length) if length <= _BITS_MAX else _STRING
    return _plain_postgres(kind, modes)


def _plain_postgres(kind: str, modes: Modes) -> AvroType:
    if kind == "timestamp" and modes.naive_timestamp == "timestamp":
        return _STAMP_MICROS
    return _POSTGRES.get(kind, lambda: _STRING)()


def _array(element: str, modes: Modes) -> AvroType:
    if element in ("json", "jsonb"):
        return _JSON
    inner = _plain_postgres(element, modes)
    schema = {"type": "array", "items": ["null", inner.schema]}
    if element == "numeric":  # With `decimal: number`, its elements are numbers.
        texts = objects.listed(objects.exactly(str))
        return AvroType(schema, objects.written(schema, texts, objects.with_number_texts), texts)
    return _object(schema, objects.listed(inner.convert or objects.exactly(str)))


_TURSO = {"integer": _LONG, "real": _DOUBLE, "text": _STRING}
"""By affinity."""


def _of_turso(column: Column, _modes: Modes) -> AvroType:
    if column.data_type == "blob" and column.column_type:
        return _object("bytes", objects.from_base64)
    return _TURSO.get(column.data_type, ANYTHING)


_TYPE_SYSTEMS: dict[TypeSystem, Callable[[Column, Modes], AvroType]] = {
    "mysql": _of_mysql,
    "postgresql": _of_postgres,
    "turso": _of_turso,
}


def _decimal(precision: int | None, scale: int | None) -> AvroType:
    if precision is None or scale is None or not 0 <= scale <= precision <= DECIMAL_MAX:
        return _STRING
    schema = {**_logical("bytes", "decimal"), "precision": precision, "scale": scale}
    return AvroType(schema, scalars.decimal(precision, scale))


def _bits(length: int) -> AvroType:
    return _BOOLEAN if length == 1 else _object("bytes", objects.bits(length))


def _enum(column: Column) -> AvroType:
    labels = column.labels
    if not labels or not all(map(is_legal, labels)):
        return _STRING
    schema = {"type": "enum", "name": f"{legal(column.name)}_enum", "symbols": list(labels)}
    return AvroType(schema, scalars.enum(labels))


def _length(column: Column, default: int) -> int:
    found = _LENGTH.search(column.column_type)
    return int(found.group(1)) if found else default
