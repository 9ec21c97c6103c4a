"""A schema registry is asked only where nobody else waits for its answer."""

import pytest

from airflow_provider_deltaforge.encodings.avro import AvroEncoding
from airflow_provider_deltaforge.encodings.contract import UnaskedError
from airflow_provider_deltaforge.engine.render.renderer import Renderer
from airflow_provider_deltaforge.sinks.memory import MemorySink
from airflow_provider_deltaforge.testing.changes import change, change_rows
from tests.encodings.answering import Answering
from tests.envelopes.changes import ORIGIN


def test_ahead_of_delivery_only_known_schemas_are_used(schema_registry_server):
    way = Answering(forward=schema_registry_server.dsn())
    encoding = AvroEncoding(schema_registry_url=way.url)
    own = Renderer(MemorySink(topic="asking", encoding=encoding), ORIGIN)
    rows = change_rows([change(after=b'{"n":1}')])
    try:
        with pytest.raises(UnaskedError, match="asking-value"):
            own.render(rows, asks=False)
        assert way.asked == []
        known, _ = own.render(rows)
        ahead, _ = own.render(rows, asks=False)
    finally:
        own.close()
        way.end()
    assert len(way.asked) == 1
    assert ahead.values.to_pylist() == known.values.to_pylist()
