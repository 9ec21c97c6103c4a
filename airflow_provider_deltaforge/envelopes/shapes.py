"""What the envelopes of this package look like, for encodings that write records."""

from airflow_provider_deltaforge.events.shapes import Field, Kind, Shape

_SOURCE = Shape(
    "Source",
    (
        Field("version", Kind.TEXT, required=True),
        Field("connector", Kind.TEXT, required=True),
        Field("name", Kind.TEXT, required=True),
        Field("ts_ms", Kind.INTEGER, required=True),
        Field("db", Kind.TEXT, required=True),
        Field("schema", Kind.TEXT),
        Field("table", Kind.TEXT, required=True),
        Field("snapshot", Kind.TEXT),
        # Where the event stands in the log, in the words of each source.
        Field("server_id", Kind.INTEGER),
        Field("gtid", Kind.TEXT),
        Field("file", Kind.TEXT),
        Field("pos", Kind.INTEGER),
        Field("lsn", Kind.TEXT),
        Field("txId", Kind.INTEGER),
        Field("change_id", Kind.INTEGER),
        Field("sequence", Kind.INTEGER),
        Field("row", Kind.INTEGER),
    ),
)
_DETAILS = (
    Field("ddl", Kind.JSON),
    Field("tags", Kind.TEXTS),
    Field("synthetic", Kind.TEXT),
    Field("unchanged", Kind.TEXTS),
)
_NATIVE = (
    Field("before", Kind.ROW),
    Field("after", Kind.ROW),
    Field("source", _SOURCE, required=True),
    Field("op", Kind.TEXT, required=True),
    Field("ts_ms", Kind.INTEGER, required=True),
    Field(
        "transaction",
        Shape(
            "Transaction",
            (
                Field("id", Kind.TEXT, required=True),
                Field("total_order", Kind.INTEGER, required=True),
            ),
        ),
    ),
    Field("event_id", Kind.TEXT, required=True),
    Field("tenant_id", Kind.TEXT, required=True),
    Field("schema_version", Kind.TEXT),
    Field("schema_sequence", Kind.INTEGER),
    *_DETAILS,
    Field("tx_end", Kind.BOOLEAN),
)

NATIVE = Shape("Envelope", _NATIVE)
DEBEZIUM = Shape("Envelope", _NATIVE, inside="payload")
"""Without ``schema`` and ``payload``: those belong to Debezium's JSON, not to its Avro."""
CLOUDEVENTS = Shape(
    "CloudEvent",
    (
        *(
            Field(name, Kind.TEXT, required=True)
            for name in ("specversion", "id", "source", "type")
        ),
        Field("time", Kind.TEXT),
        Field("datacontenttype", Kind.MEDIA_TYPE, required=True),
        Field("subject", Kind.TEXT, required=True),
        Field(
            "data",
            Shape(
                "Data",
                (
                    Field("before", Kind.ROW),
                    Field("after", Kind.ROW),
                    Field("op", Kind.TEXT, required=True),
                    *_DETAILS,
                ),
            ),
            required=True,
        ),
    ),
)
