"""What sources really produce, rendered by columns and row by row."""

import pytest

from airflow_provider_deltaforge.engine.render.renderer import Renderer
from airflow_provider_deltaforge.envelopes.cloudevents import CloudEventsEnvelope
from airflow_provider_deltaforge.sinks.memory import MemorySink
from airflow_provider_deltaforge.sources.scripted import ScriptedSource
from tests.envelopes.changes import ORIGIN, slow_cloudevent, slow_native


@pytest.fixture(params=["stream", "snapshot"])
def batch(request):
    source = ScriptedSource(transactions=40, rows=7)
    if request.param == "stream":
        reader = source.open({"tx": 0})
        return reader.decode(reader.read(1.0))
    snapshotter = source.open_snapshot()
    (chunk, *_) = snapshotter.plan(100)
    return next(iter(snapshotter.read(chunk, "run")))


def test_native(batch):
    messages, rejections = Renderer(MemorySink(), ORIGIN).render(batch.rows)

    expected = [slow_native(row, ORIGIN).encode() for row in batch.rows.to_pylist()]
    assert messages.values.to_pylist() == expected
    assert messages.keys.to_pylist() == batch.rows["key"].to_pylist()
    assert (len(messages) > 0, rejections) == (True, [])


def test_cloudevents(batch):
    sink = MemorySink(envelope=CloudEventsEnvelope(type_prefix="com.acme"))

    messages, _ = Renderer(sink, ORIGIN).render(batch.rows)

    expected = [slow_cloudevent(row, ORIGIN, "com.acme") for row in batch.rows.to_pylist()]
    assert [text.decode() for text in messages.values.to_pylist()] == expected
