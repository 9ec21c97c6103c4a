import uuid

import pytest

from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.sinks.memory import MemorySink, memory_log
from airflow_provider_deltaforge.testing.sinks import SinkContract, messages, value

ROWS = [("t", b"k", value(n)) for n in range(3)]


@pytest.fixture
def sink():
    return MemorySink(log=uuid.uuid4().hex)


class TestMemorySink(SinkContract):
    @pytest.fixture
    def place(self):
        return "t"

    @pytest.fixture
    def stored(self, sink):
        return lambda: [each.value for each in memory_log(sink.log).messages()]


def test_the_log_is_named_after_the_sink_by_default():
    sink = MemorySink(id=uuid.uuid4().hex)

    sink.open("p").write(messages(ROWS))

    assert len(memory_log(sink.id).messages()) == 3


def test_injected_failures_come_in_turn_and_may_store_a_part(sink):
    log = memory_log(sink.log)
    log.fail_next(2, RetryableError("away"), after_messages=1)
    writer = sink.open("p")

    for _ in range(2):
        with pytest.raises(RetryableError, match="away"):
            writer.write(messages(ROWS))
    writer.write(messages(ROWS))

    assert [each.value for each in log.messages()] == [value(0), value(0), *map(value, range(3))]


def test_what_is_too_long_is_rejected_alone(sink):
    log = memory_log(sink.log)
    log.value_bytes_max = 20
    rows = [*ROWS, ("t", b"k", b"x" * 21)]

    rejections = sink.open("p").write(messages(rows))

    assert [(each.event_row, each.kind) for each in rejections] == [(3, "message_too_large")]
    assert len(log.messages()) == 3


def test_a_message_is_kept_whole(sink):
    batch = messages([("t", b"k", b"v")], headers=[[("h", "1")]])
    sink.open("p").write(batch)

    (kept,) = memory_log(sink.log).messages()

    assert (kept.topic, kept.key, kept.value, kept.headers) == ("t", b"k", b"v", (("h", "1"),))
    assert kept.event_id == batch.event_ids[0].as_py()


def test_clear_forgets_messages_and_faults(sink):
    log = memory_log(sink.log)
    log.fail_next(1, RetryableError("away"))
    log.clear()

    sink.open("p").write(messages(ROWS))
    log.clear()

    assert log.messages() == []
