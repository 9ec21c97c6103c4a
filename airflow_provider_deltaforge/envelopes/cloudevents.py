"""CloudEvents 1.0 in structured JSON."""

from typing import ClassVar
from urllib.parse import quote

import pyarrow as pa

from airflow_provider_deltaforge.columns.row_texts import (
    Piece,
    has_rfc3339,
    join,
    json_text,
    per_combination,
    rfc3339_texts,
    texts_of,
    uuids_of,
    where_true,
)
from airflow_provider_deltaforge.envelopes.contract import Envelope, EventPaths, Origin
from airflow_provider_deltaforge.envelopes.native import optional_details
from airflow_provider_deltaforge.envelopes.shapes import CLOUDEVENTS
from airflow_provider_deltaforge.events.shapes import Shape

_SUFFIXES = {
    "c": "created",
    "u": "updated",
    "d": "deleted",
    "r": "snapshot",
    "t": "truncated",
    "ddl": "schema_changed",
}


class CloudEventsEnvelope(Envelope):
    """``type`` is the prefix and what happened: ``com.acme.cdc.created``."""

    media_types: ClassVar[tuple[str, str]] = (
        "application/cloudevents+json",
        "application/cloudevents-batch+json",
    )
    shape: ClassVar[Shape | None] = CLOUDEVENTS
    paths: ClassVar[EventPaths | None] = EventPaths(
        ("data",), (("subject",),), ("source",), in_uri=True
    )

    type_prefix: str
    """Begins the ``type`` of every event, by custom a reversed domain name."""

    def wrap(self, rows: pa.RecordBatch, origin: Origin) -> pa.BinaryArray:
        """Return each change event as a CloudEvent; a missing image is ``null``."""
        return join(self._pieces(rows, origin), rows.num_rows)

    def _pieces(self, rows: pa.RecordBatch, origin: Origin) -> list[Piece]:
        if not rows.num_rows:
            return []
        place = [rows["db"], rows["schema"], rows["table"]]
        ts_ms = rows["ts_ms"]

        def head(db: str, schema: str | None, table: str, op: str) -> bytes:
            # A CloudEvents source is a URI reference; an ordinary name is not changed by this.
            source = quote(f"deltaforge/{origin.pipeline}/{full_table(db, schema, table)}")
            kind = f"{self.type_prefix}.{_SUFFIXES.get(op, op)}"
            return b'","source":%b,"type":%b' % (json_text(source), json_text(kind))

        def subject(db: str, schema: str | None, table: str) -> bytes:
            text = b',"datacontenttype":"application/json","subject":%b,"data":{"before":'
            return text % json_text(full_table(db, schema, table))

        return [
            b'{"specversion":"1.0","id":"',
            uuids_of(rows["event_id"]),
            per_combination([*place, rows["op"]], head),
            # The attribute is optional, and RFC 3339 has no other years.
            *where_true(has_rfc3339(ts_ms), [b',"time":"', texts_of(rfc3339_texts(ts_ms)), b'"']),
            per_combination(place, subject),
            texts_of(rows["before"]),
            b',"after":',
            texts_of(rows["after"]),
            per_combination([rows["op"]], lambda op: b',"op":' + json_text(op)),
            *optional_details(rows),
            b"}}",
        ]


def full_table(db: str, schema: str | None, table: str) -> str:
    """Return ``schema.table`` where the source has schemas, else ``db.table``."""
    return f"{schema or db}.{table}"
