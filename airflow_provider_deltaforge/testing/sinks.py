"""What every sink promises, as tests to inherit."""

import hashlib
import pickle
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.events.message import Messages
from airflow_provider_deltaforge.sinks.contract import Reachable, Sink

Row = tuple[str, bytes | None, bytes | None]
"""Topic, key and value of a message."""

Headers = Sequence[Sequence[tuple[str, str]] | None]
"""Names and values, per message; None for a message without any."""


def messages(rows: Sequence[Row], headers: Headers | None = None) -> Messages:
    """Return messages whose event rows count from 0.

    Equal rows have equal event ids, as events that are read again have.

    Args:
        rows: topic, key and value of each; a value of None is a tombstone.
        headers: per message; None where no message has any.
    """
    topics, keys, values = ([row[part] for row in rows] for part in range(3))
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
    """Return a small JSON text that is another one for each ``n``."""
    return b'{"n":%d}' % n


class SinkContract:
    """Inherit, and define these fixtures, in the class or in its module.

    - ``sink``: the description; some tests open it several times.
    - ``place``: the destination that messages name (topic, stream, subject, URL or path), which is
      empty at first.
    - ``stored``: a function that returns the values that a reader of ``place`` finds, in order.
    """

    def test_description_travels_to_another_process(self, sink: Sink) -> None:
        assert pickle.loads(pickle.dumps(sink)) == sink

    def test_the_fields_of_templates_are_fields(self, sink: Sink) -> None:
        fields = type(sink).model_fields

        assert sink.destination_field in fields
        assert sink.key_field is None or sink.key_field in fields

    def test_what_is_written_is_there_when_write_returns(
        self, sink: Sink, place: str, stored: Callable[[], list[bytes]]
    ) -> None:
        writer = sink.open("p")

        rejections = writer.write(messages([(place, b"k", value(n)) for n in range(10)]))

        assert list(rejections) == []
        assert stored() == [value(n) for n in range(10)]
        if isinstance(writer, Reachable):
            writer.reach()
        writer.close()

    def test_batches_keep_their_order(
        self, sink: Sink, place: str, stored: Callable[[], list[bytes]]
    ) -> None:
        writer = sink.open("p")

        for start in range(0, 300, 100):
            rows = [(place, b"same", value(n)) for n in range(start, start + 100)]
            writer.write(messages(rows))

        assert stored() == [value(n) for n in range(300)]
        writer.close()

    def test_no_messages_write_nothing(
        self, sink: Sink, place: str, stored: Callable[[], list[bytes]]
    ) -> None:
        writer = sink.open("p")
        writer.write(messages([(place, b"k", value(1))]))

        assert list(writer.write(messages([]))) == []

        assert stored() == [value(1)]
        writer.close()

    def test_a_slice_of_messages_is_written_alone(
        self, sink: Sink, place: str, stored: Callable[[], list[bytes]]
    ) -> None:
        whole = messages([(place, b"k%d" % n, value(n)) for n in range(5)])
        writer = sink.open("p")

        writer.write(whole.slice(2, 2))

        assert stored() == [value(2), value(3)]
        writer.close()

    def test_large_values_and_text_survive(
        self, sink: Sink, place: str, stored: Callable[[], list[bytes]]
    ) -> None:
        values = [b'{"t":"' + b"x" * 300_000 + b'"}', '{"t":"é😀\\n"}'.encode(), b"{}"]
        writer = sink.open("p")

        writer.write(messages([(place, None, each) for each in values]))

        assert sorted(stored()) == sorted(values)
        writer.close()

    def test_a_tombstone_is_written_or_rejected(self, sink: Sink, place: str) -> None:
        writer = sink.open("p")

        rejections = writer.write(messages([(place, b"k", value(1)), (place, b"k", None)]))

        assert {rejection.event_row for rejection in rejections} <= {1}
        writer.close()

    def test_closing_twice_is_harmless(self, sink: Sink, place: str) -> None:
        writer = sink.open("p")
        writer.write(messages([(place, b"k", value(1))]))

        writer.close()
        writer.close()

    def test_a_second_writer_adds_to_what_is_there(
        self, sink: Sink, place: str, stored: Callable[[], list[bytes]]
    ) -> None:
        for n in range(2):
            writer = sink.open("p")
            writer.write(messages([(place, b"k", value(n))]))
            writer.close()

        assert stored() == [value(0), value(1)]
