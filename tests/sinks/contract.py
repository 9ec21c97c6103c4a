"""What every sink promises, as tests to inherit."""

import hashlib
import pickle
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.events.message import Messages
from airflow_provider_deltaforge.sinks.contract import Reachable

Row = tuple[str, bytes | None, bytes | None]
"""Topic, key and value of a message."""


def messages(rows: Sequence[Row], headers=None) -> Messages:
    """Return messages whose event rows count from 0."""
    topics, keys, values = ([row[part] for row in rows] for part in range(3))
    # As with real events: the same one has the same id wherever it stands, another one another.
    ids = [hashlib.blake2b(repr(row).encode(), digest_size=16).digest() for row in rows]
    return Messages(
        topics=pa.array(topics, pa.utf8()).dictionary_encode(),
        keys=pa.array(keys, pa.binary()),
        values=pa.array(values, pa.binary()),
        headers=None if headers is None else pa.array(headers, pa.map_(pa.utf8(), pa.utf8())),
        event_ids=pa.array(ids, pa.binary(16)),
        event_rows=pa.array(np.arange(len(rows)), pa.int32()),
    )


def value(n: int) -> bytes:
    return b'{"n":%d}' % n


class SinkContract:
    """Inherit, and give the fixtures ``sink``, ``place`` (a destination) and ``stored``.

    ``stored()`` returns the values that a reader of ``place`` finds, in order.
    """

    def test_description_travels_to_another_process(self, sink):
        assert pickle.loads(pickle.dumps(sink)) == sink

    def test_what_is_written_is_there_when_write_returns(self, sink, place, stored):
        writer = sink.open("p")

        rejections = writer.write(messages([(place, b"k", value(n)) for n in range(10)]))

        assert list(rejections) == []
        assert stored() == [value(n) for n in range(10)]
        if isinstance(writer, Reachable):
            writer.reach()
        writer.close()

    def test_batches_keep_their_order(self, sink, place, stored):
        writer = sink.open("p")

        for start in range(0, 300, 100):
            rows = [(place, b"same", value(n)) for n in range(start, start + 100)]
            writer.write(messages(rows))

        assert stored() == [value(n) for n in range(300)]
        writer.close()

    def test_no_messages_write_nothing(self, sink, place, stored):
        writer = sink.open("p")
        writer.write(messages([(place, b"k", value(1))]))

        assert list(writer.write(messages([]))) == []

        assert stored() == [value(1)]
        writer.close()

    def test_a_slice_of_messages_is_written_alone(self, sink, place, stored):
        whole = messages([(place, b"k%d" % n, value(n)) for n in range(5)])
        names = ("topics", "keys", "values", "event_ids", "event_rows")
        part = Messages(headers=None, **{name: getattr(whole, name).slice(2, 2) for name in names})
        writer = sink.open("p")

        writer.write(part)

        assert stored() == [value(2), value(3)]
        writer.close()

    def test_large_values_and_text_survive(self, sink, place, stored):
        values = [b'{"t":"' + b"x" * 300_000 + b'"}', '{"t":"é😀\\n"}'.encode(), b"{}"]
        writer = sink.open("p")

        writer.write(messages([(place, None, each) for each in values]))

        assert sorted(stored()) == sorted(values)
        writer.close()

    def test_closing_twice_is_harmless(self, sink, place):
        writer = sink.open("p")
        writer.write(messages([(place, b"k", value(1))]))

        writer.close()
        writer.close()

    def test_a_second_writer_adds_to_what_is_there(self, sink, place, stored):
        for n in range(2):
            writer = sink.open("p")
            writer.write(messages([(place, b"k", value(n))]))
            writer.close()

        assert stored() == [value(0), value(1)]
