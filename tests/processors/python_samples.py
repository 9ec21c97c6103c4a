"""Functions and classes as users write them, for the processor ``python``."""

import json
import sys
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.errors import RetryableError

NUMBER = 7


def only_paid(batch, *, status="paid"):
    images = [
        text is not None and json.loads(text).get("status") == status
        for text in batch.column("after").to_pylist()
    ]
    return batch.filter(pa.array(images))


def as_given(given):
    return given


def twice(batch):
    both = pa.Table.from_batches([batch, batch]).combine_chunks().to_batches()[0]
    order = sorted(range(both.num_rows), key=lambda at: at % batch.num_rows)
    return both.take(pa.array(order))


def backwards(given):
    return given.take(pa.array(range(given.num_rows)[::-1]))


def plain_types(batch):
    """Go through Python objects: dictionaries become plain text, ids of new events are null."""
    events = batch.to_pylist()
    made = {**events[0], "event_id": None, "op": "c", "after": b'{"new":true}', "tx": 99}
    fields = [field.with_nullable(True) for field in batch.schema]
    fields[0] = pa.field("op", pa.string())
    return pa.Table.from_pylist([events[0], made, *events[1:]], schema=pa.schema(fields))


def as_polars_returns_it(batch):
    """Return the types that Polars has: large ones, and lists of structs for maps."""
    pairs = pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.large_string())]))
    routing = pa.struct(
        [
            ("topic", pa.large_string()),
            ("key", pa.large_string()),
            ("headers", pairs),
            ("raw_payload", pa.bool_()),
        ]
    )
    columns = []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if pa.types.is_dictionary(field.type):
            large = pa.large_binary() if field.name == "source_position" else pa.large_string()
            columns.append(column.cast(large).dictionary_encode())
        elif field.name == "routing":
            events = [
                event
                and {
                    **event,
                    "headers": event["headers"]
                    and [{"key": key, "value": value} for key, value in event["headers"]],
                }
                for event in column.to_pylist()
            ]
            columns.append(pa.array(events, routing))
        elif pa.types.is_fixed_size_binary(field.type) or pa.types.is_binary(field.type):
            columns.append(column.cast(pa.binary()).cast(pa.large_binary()))
        elif field.name == "tags":
            columns.append(column.cast(pa.large_list(pa.large_string())))
        elif pa.types.is_string(field.type):
            columns.append(column.cast(pa.large_string()))
        else:
            columns.append(column)
    return pa.table(dict(zip(batch.schema.names, columns, strict=True)))


def set_column(batch, name, value):
    at = batch.schema.get_field_index(name)
    kind = batch.schema.field(at).type
    kind = pa.utf8() if pa.types.is_dictionary(kind) else kind
    value = value.encode() if pa.types.is_binary(kind) and value is not None else value
    column = pa.array([value] * batch.num_rows, kind)
    return batch.set_column(at, pa.field(name, kind), column)


def without_op(batch):
    return batch.drop_columns(["op"])


def one_more_column(batch):
    return batch.append_column("total", pa.nulls(batch.num_rows))


def numbers_for_ops(batch):
    return batch.set_column(0, "op", pa.array([[1]] * batch.num_rows))


def strict(batch):
    """Fail for the whole batch because of one row."""
    for text in batch.column("after").to_pylist():
        int(json.loads(text)["n"])
    return batch


def strict_and_named(batch):
    """Name each event's operation by its row, so that no two parts have the same dictionary."""
    ops = pa.array([int(json.loads(text)["n"]) for text in batch.column("after").to_pylist()])
    names = pc.if_else(pc.equal(ops, 1), "u", "d")
    return batch.set_column(0, "op", names)


def leaves(_):
    sys.exit(3)


def away(_):
    raise RetryableError("the service is away")


def no_argument():
    return None


class Counting:
    """Holds state for one lane."""

    closed = 0

    def __init__(self, start=0):
        self.seen = start

    def process(self, event):
        self.seen += 1
        event["tags"] = [f"number-{self.seen}"]
        return event

    def close(self):
        type(self).closed += 1


class WithoutProcess:
    pass


class Broken:
    def __init__(self):
        raise ValueError("password=hunter2 was refused")


def by_status(event):
    """Drop, keep, change, multiply and refuse, by the row's status."""
    row = event["after"]
    match row["status"]:
        case "drop":
            return None
        case "change":
            row["seen"] = [event["op"], event["table"]]
            event["routing"] = {"topic": "t", "headers": {"a": "b"}}
        case "split":
            return [{"after": {"part": part}} for part in (1, 2)]
        case "generate":
            return (part for part in [event, {**event, "op": "d", "after": None}])
        case "replace":
            return {"event_id": "another", "op": "u", "after": {"new": 1}}
        case "raise":
            raise ValueError(f"cannot do {row['secret']}")
    return event


def returning(_, value):
    return value


def merged(event, changes):
    return {**event, **changes}


def discounted(table, percent):
    total = pc.multiply(table["total"], pa.scalar(100 - percent, pa.int64()))
    total = pc.divide(total.cast(pa.float64()), 100.0).cast(pa.decimal128(12, 2), safe=False)
    table = table.set_column(table.schema.get_field_index("total"), "total", total)
    return table.append_column("discount", pa.array([f'{percent} "%"'] * table.num_rows))


def dear_ones(table):
    return table.filter(pc.greater(table["total"], 50))


def as_batch(table):
    return table.combine_chunks().to_batches()[0]


def fewer(table):
    return table.slice(0, 1).drop_columns(["_row"])


def nulled(table, column):
    at = table.schema.get_field_index(column)
    return table.set_column(at, column, pa.nulls(table.num_rows))


def parts(table):
    return table.append_column("parts", pa.array([[1]] * table.num_rows))


def by_row(event):
    """Drop the first row of a transaction, double the last, and fail for the rest."""
    match event["after"]["row"]:
        case 0:
            return None
        case 2:
            return [event, {"after": {**event["after"], "copy": True}, "event_id": "new"}]
    raise ValueError(f"no rule for row {event['after']['row']}")


def nested(depth, inside=None):
    value = inside
    for _ in range(depth):
        value = [value]
    return value


def odd(event):
    """Return what the new image names: values that are hard to write."""
    kind = event["after"]["kind"]
    event["after"] = {"kind": kind, "v": ODD_VALUES[kind]() if kind in ODD_VALUES else None}
    event.update(ODD_FIELDS.get(kind, {}))
    return event


def itself():
    value = []
    value.append(value)
    return value


ODD_VALUES = {
    "many": lambda: nested(3000),
    "lots": lambda: nested(100_000),
    "300 deep": lambda: nested(300, float("nan")),
    "x_itself": itself,
    "surrogate": lambda: "\ud83d",
    "x_key": lambda: {"\ude00": 1},
    "nan": lambda: [float("nan"), float("inf"), float("-inf"), None, {"a": (float("nan"),)}],
    "nan and wide": lambda: [float("nan"), 2**70],
    "wide": lambda: 2**70,
    "small": lambda: [Decimal("1.00E-8"), None],
}
ODD_FIELDS = {
    "x_op": {"op": ["c"]},
    "x_topic": {"routing": {"topic": "\ud83d"}},
    "x_header": {"routing": {"headers": {"a": "\ud83d"}}},
    "x_tags": {"tags": ["\ud83d"]},
    "x_db": {"source": {"db": "\ud83d"}},
    "x_ddl": {"ddl": nested(100_000)},
    "x_id": {"event_id": nested(100_000)},
    "x_routing": {"routing": nested(100_000)},
}
