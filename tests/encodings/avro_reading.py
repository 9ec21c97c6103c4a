"""Writing messages as Avro and reading them back with libraries that share no code with us."""

import base64
import datetime
import decimal
import io
import json
import math
import struct
from dataclasses import dataclass, field

import fastavro
import pyarrow as pa
from confluent_kafka.schema_registry.avro import AvroDeserializer

from airflow_provider_deltaforge.encodings.avro.column_types import Modes
from airflow_provider_deltaforge.encodings.avro.encoder import AvroEncoder
from airflow_provider_deltaforge.encodings.contract import Bodies, EncoderRequest
from airflow_provider_deltaforge.engine.render.renderer import Renderer
from airflow_provider_deltaforge.envelopes.contract import Origin
from airflow_provider_deltaforge.sinks.memory import MemorySink


@dataclass
class Numbers:
    """Numbers schemas, as a registry does that takes everything."""

    schemas: list = field(default_factory=list)
    subjects: list = field(default_factory=list)

    def id_of(self, subject, schema, *, asks=True):
        self.subjects.append(subject)
        if schema not in self.schemas:
            self.schemas.append(schema)
        return self.schemas.index(schema)

    def close(self):
        """Nothing is held."""

    def read(self, message):
        """Return a message's content, by fastavro."""
        magic, number = struct.unpack(">bI", message[:5])
        assert magic == 0
        return fastavro.schemaless_reader(io.BytesIO(message[5:]), self.parsed(number))

    def parsed(self, number):
        return fastavro.parse_schema(json.loads(self.schemas[number]))


class Writing:
    """An encoder of one connector's messages, and what it was given to know."""

    def __init__(self, connector, schemas=(), *, strategy="topic_name", modes=None, **sink):
        self.numbers = Numbers()
        self.sink = MemorySink(**{"topic": "cdc", **sink})
        self.origin = Origin("orders-cdc", "acme", connector, "0.1.0")
        self.known = {(s.db, s.schema, s.table, s.fingerprint): s for s in schemas}
        shape = self.sink.envelope.shape
        request = EncoderRequest(
            "out", connector, shape, lambda *table: self.known.get(table), connector
        )
        self.encoder = AvroEncoder(request, shape, self.numbers, strategy, modes or Modes())

    def write(self, rows):
        """Return what became of change events, and their messages as JSON."""
        messages, rejections = Renderer(self.sink, self.origin).render(rows)
        assert not rejections
        routing = pa.array(
            [r is not None and r["raw_payload"] for r in rows["routing"].to_pylist()]
        )
        encoded = self.encoder.encode(Bodies(messages.values, messages.topics, rows, routing))
        return encoded, messages.values.to_pylist()

    def read(self, rows):
        """Return each event's message, as fastavro reads it, none of them refused."""
        encoded, _ = self.write(rows)
        assert not encoded.rejections
        return [self.numbers.read(message) for message in encoded.values.to_pylist()]


def type_named(schema, name):
    """Return the type that a field of the rows has, without null."""
    found = [one for one in _fields(schema) if one.get("column", one["name"]) == name]
    kind = found[0]["type"]
    branches = [branch for branch in kind if branch != "null"] if isinstance(kind, list) else [kind]
    return branches[0] if len(branches) == 1 else branches


def _fields(schema):
    if isinstance(schema, list):
        return [one for branch in schema for one in _fields(branch)]
    if not isinstance(schema, dict):
        return []
    if schema.get("name") == "Value" or schema.get("name", "").endswith(".Value"):
        return schema["fields"]
    return [one for inner in schema.get("fields", ()) for one in _fields(inner["type"])]


def as_json(kind, value):  # noqa: PLR0911 - a case for each type
    """Return what an Avro value says, in the form of the JSON encoding."""
    logical = kind.get("logicalType") if isinstance(kind, dict) else None
    plain = kind.get("type") if isinstance(kind, dict) else kind
    if value is None:
        return None
    if isinstance(value, bytes):
        return {"_base64": base64.b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if logical in ("date", "time-millis", "time-micros"):
        return value.isoformat()
    if logical in ("timestamp-millis", "timestamp-micros"):
        assert value.tzinfo == datetime.timezone.utc
        return value.isoformat().replace("+00:00", "Z")
    if plain == "array":
        inner = next(branch for branch in kind["items"] if branch != "null")
        return [as_json(inner, item) for item in value]
    if plain in ("record", "deltaforge.Geometry"):
        return {"srid": value["srid"], **as_json("bytes", value["wkb"])}
    return str(value) if logical == "uuid" else value


def read(client, messages, reader_schema=None):
    """Return what Confluent's deserializer makes of messages."""
    deserializer = AvroDeserializer(client, reader_schema)
    return [deserializer(value, None) for value in messages.values.to_pylist()]


def absent(found, told):
    """Hold a record against its JSON; what the JSON leaves out is null."""
    for key, value in found.items():
        if isinstance(value, dict) and key not in ("before", "after"):
            absent(value, told[key])
        elif key in ("before", "after") and value is not None:
            row = {k: str(v) if k == "total" and v is not None else v for k, v in value.items()}
            assert row.pop("_raw") is None
            assert row == told[key]
        elif key == "ddl" and value is not None:
            assert json.loads(value) == told[key]
        elif key != "datacontenttype":
            assert value == told.get(key), key
    assert told.keys() <= found.keys()


def id_in(value):
    """Return the id of the schema that a message names."""
    return struct.unpack(">bI", value[:5])[1]


def rows_in(client, log):
    """Return transaction and row of each message of a scripted pipeline."""
    deserializer = AvroDeserializer(client)
    events = [deserializer(one.value, None)["after"] for one in log.messages()]
    return [(event["tx"], event["row"]) for event in events]


def collect(reader, batches):
    """Read on; return how many rows were inserted in all."""
    chunk = reader.read(0.2)
    if chunk is not None:
        batches.append(reader.decode(chunk))
    ops = [op for batch in batches for op in batch.rows["op"].to_pylist()]
    return ops.count("c")
