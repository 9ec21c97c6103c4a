"""Change events as columns of a DataFrame."""

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.columns.binary_columns import uuid_texts

FRAME_SCHEMA = """
    op string, db string, schema string, table string,
    before string, after string, key string,
    ts_ms bigint, tx_id string, tx_row int, tx_end boolean,
    event_id string, position string,
    schema_version string, schema_sequence bigint, ddl string
"""
"""Row images, keys and ``ddl`` are JSON text; ``position`` is the event's place in the log as a
JSON object; ``event_id`` a UUID, the same on every replay; ``ts_ms`` ms since epoch, UTC."""

_TEXTS = ("op", "db", "schema", "table")
_JSON = ("before", "after", "key")


def frame_of(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return events of CHANGE_SCHEMA in the columns of FRAME_SCHEMA."""
    columns = {
        **{name: rows[name].cast(pa.utf8()) for name in _TEXTS},
        **{name: rows[name].cast(pa.utf8()) for name in _JSON},
        "ts_ms": rows["ts_ms"],
        "tx_id": rows["tx_id"].cast(pa.utf8()),
        "tx_row": rows["row"],
        "tx_end": rows["tx_end"],
        "event_id": uuid_texts(rows["event_id"]).cast(pa.utf8()),
        "position": _objects(rows["source_position"]),
        "schema_version": rows["schema_version"].cast(pa.utf8()),
        "schema_sequence": rows["schema_sequence"],
        "ddl": rows["ddl"].cast(pa.utf8()),
    }
    return pa.RecordBatch.from_pydict(columns)


def _objects(inside: pa.DictionaryArray) -> pa.StringArray:
    """Put braces around each distinct position, once, and spread them over the rows."""
    texts = inside.dictionary.cast(pa.utf8())
    objects = pc.binary_join_element_wise("{", texts, "}", "")
    return objects.take(inside.indices)
