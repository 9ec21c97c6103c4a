"""Exactly once into Kafka: the position is part of the transaction."""

import random
import uuid
from functools import partial

import confluent_kafka
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from airflow_provider_deltaforge.errors import FatalError, FencedError, RetryableError
from airflow_provider_deltaforge.sinks.kafka import KafkaSink
from airflow_provider_deltaforge.sinks.kafka.batch import KafkaBatch
from airflow_provider_deltaforge.sinks.position_contract import ExactlyOnceWriter, SinkPosition
from airflow_provider_deltaforge.testing.sinks import messages, value
from tests.sinks.kafka_reader import read_topic
from tests.waiting import PATIENCE_S, wait_until

LIMIT = 2000


def at(pos, event_id=None):
    return SinkPosition({"pos": pos}, event_id)


def numbers(span):
    return [value(n) for n in span]


def recovered(writer):
    """Return a writer's position as a lane asks for it: once more while its broker recovers."""
    asks = Retrying(
        retry=retry_if_exception_type(RetryableError),
        stop=stop_after_delay(PATIENCE_S),
        wait=wait_fixed(0.2),
        reraise=True,
    )
    return asks(writer.recover)


def noise(length):
    """Return a text that no compression makes shorter."""
    return random.randbytes(length // 2).hex().encode()


@pytest.fixture
def brokers(kafka_server):
    return kafka_server.dsn()


@pytest.fixture
def topic():
    return f"orders-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def pipeline():
    return f"p-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def rows(topic):
    return lambda span: messages([(topic, b"same", value(n)) for n in span])


@pytest.fixture
def stored(brokers, topic):
    return lambda: [each.value for each in read_topic(brokers, topic)]


@pytest.fixture
def open_writer(brokers, pipeline):
    opened = []

    def do_open(**settings):
        sink = KafkaSink(brokers=brokers, topic="t", exactly_once=True, **settings)
        opened.append(sink.open(pipeline))
        return opened[-1]

    yield do_open
    for writer in opened:
        writer.close()


@pytest.fixture
def faults(monkeypatch):
    """What a producer does instead, by the name of the call: ``(producer, call, timeout_s)``."""
    faults = {}

    def through(name):
        def call(producer, timeout_s):
            real = partial(getattr(Producer, name), producer)
            return faults.get(name, lambda _, real, timeout_s: real(timeout_s))(
                producer, real, timeout_s
            )

        return call

    class Faulty(Producer):
        def __init__(self, settings):
            self.id, self.failures = settings["transactional.id"], []
            note = partial(self.note, settings["on_delivery"])
            super().__init__({**settings, "on_delivery": note})

        def note(self, tell, error, message):
            self.failures += [] if error is None else [error]
            tell(error, message)

    for name in ("flush", "commit_transaction", "abort_transaction"):
        setattr(Faulty, name, through(name))
    monkeypatch.setattr(confluent_kafka, "Producer", Faulty)
    return faults


def create(brokers, name, **settings):
    config = {key.replace("_", "."): str(each) for key, each in settings.items()}
    admin = AdminClient({"bootstrap.servers": brokers})
    admin.create_topics([NewTopic(name, 1, 1, config=config)])[name].result(timeout=60)


def test_what_is_written_and_where_it_stands_is_found_again(open_writer, rows, stored):
    writer = open_writer()
    assert isinstance(writer, ExactlyOnceWriter)
    assert writer.recover() is None

    assert list(writer.write_once(rows(range(5)), at(0), at(1))) == []
    assert list(writer.write_once(rows(range(5, 9)), at(1), at(2, b"x" * 16))) == []

    assert stored() == numbers(range(9))
    assert open_writer().recover() == at(2, b"x" * 16)


def test_the_positions_have_a_compacted_topic_of_their_own(open_writer, brokers, pipeline):
    open_writer().recover()

    resource = ConfigResource(ConfigResource.Type.TOPIC, f"_deltaforge.{pipeline}.positions")
    admin = AdminClient({"bootstrap.servers": brokers})
    told = admin.describe_configs([resource])[resource].result()
    assert told["cleanup.policy"].value == "compact"


def test_a_topic_that_forgets_is_refused(open_writer, brokers, topic):
    create(brokers, topic)

    with pytest.raises(FatalError, match="set its cleanup"):
        open_writer(positions_topic=topic).recover()


def test_the_position_is_found_behind_many_others(open_writer, rows, brokers, topic):
    create(brokers, topic, cleanup_policy="compact")
    one = open_writer(id="one", positions_topic=topic)
    one.recover()
    one.write_once(messages([("elsewhere", b"k", b"1")]), at(0), at(1))
    producer = Producer({"bootstrap.servers": brokers})
    for pos in range(1500):
        producer.produce(topic, at(pos).as_text(), b"other")
    assert producer.flush(PATIENCE_S) == 0

    assert open_writer(id="one", positions_topic=topic).recover() == at(1)


def test_behind_an_open_transaction_of_another_sink_the_position_is_waited_for(open_writer, rows):
    other, one = open_writer(id="other"), open_writer(id="one")
    other.recover()
    one.recover()
    record = (other._key, at(9).as_text())
    other._send(KafkaBatch(messages([("elsewhere", b"k", b"1")])), record, deadline=float("inf"))
    one.write_once(rows(range(3)), at(0), at(1))

    hurried = open_writer(id="one", send_timeout_secs=3)

    def is_named():
        with pytest.raises(RetryableError) as caught:
            hurried.recover()
        return "to its end" in (text := str(caught.value)) and "open transaction at offset" in text

    wait_until(is_named)  # It may take its time to begin with transactions, too.
    other.close()

    assert open_writer(id="one").recover() == at(1)


def test_pipelines_may_share_a_topic_of_positions(open_writer, rows, brokers, topic):
    shared = f"{topic}-positions"
    one = open_writer(positions_topic=shared)
    one.recover()
    one.write_once(rows(range(3)), at(0), at(1))
    sink = KafkaSink(brokers=brokers, topic="t", exactly_once=True, positions_topic=shared)

    another = sink.open(f"p-{uuid.uuid4().hex[:8]}")

    assert another.recover() is None
    another.close()


def test_a_writer_that_was_shut_out_writes_nothing_more(open_writer, rows, stored):
    former = open_writer()
    former.recover()
    former.write_once(rows(range(3)), at(0), at(1))
    later = open_writer()
    assert later.recover() == at(1)

    with pytest.raises(FencedError):
        former.write_once(rows(range(3, 6)), at(1), at(2))
    later.write_once(rows(range(3, 5)), at(1), at(3))

    assert stored() == numbers(range(5))
    assert former.recover() == at(3)


def test_an_open_transaction_is_never_seen(open_writer, rows, stored):
    former = open_writer()
    former.recover()
    former.write_once(rows(range(3)), at(0), at(1))
    record = (former._key, at(2).as_text())
    former._send(KafkaBatch(rows(range(3, 6))), record, deadline=float("inf"))

    assert open_writer().recover() == at(1)
    assert stored() == numbers(range(3))


def test_of_what_is_refused_nothing_is_durable(open_writer, brokers, topic, stored):
    create(brokers, topic, max_message_bytes=LIMIT)
    long = {3, 7}
    given = [(topic, b"k", noise(2 * LIMIT if n in long else 20)) for n in range(9)]
    writer = open_writer()
    writer.recover()

    refused = writer.write_once(messages(given), at(0), at(1))

    assert {one.event_row for one in refused} == long
    assert {one.kind for one in refused} == {"message_too_large"}
    assert stored() == []
    rest = [row for n, row in enumerate(given) if n not in long]
    assert list(writer.write_once(messages(rest), at(0), at(1))) == []
    assert stored() == [row[2] for row in rest]


def test_messages_that_are_too_large_together_are_sent_in_parts(
    open_writer, brokers, topic, stored
):
    create(brokers, topic, max_message_bytes=LIMIT)
    given = [(topic, b"k", noise(LIMIT // 3)) for _ in range(8)]
    writer = open_writer()
    writer.recover()

    with pytest.raises(RetryableError, match="in parts"):
        writer.write_once(messages(given), at(0), at(1))
    assert list(writer.write_once(messages(given), at(0), at(1))) == []

    assert stored() == [row[2] for row in given]


def test_a_commit_without_an_answer_is_tried_again(open_writer, rows, stored, kafka_server, faults):
    writer = open_writer()
    writer.recover()
    writer.write_once(rows(range(3)), at(0), at(1))
    writer.timeout_s = 3.0  # In which the messages are sent, before it is asked to commit.

    def freeze(producer, commit, timeout_s):
        """Stop the broker when it is asked to commit."""
        producer.flush(timeout_s)
        kafka_server.pause()
        return commit(timeout_s)

    faults["commit_transaction"] = freeze
    try:
        with pytest.raises(RetryableError, match="commit"):
            writer.write_once(rows(range(3, 6)), at(1), at(2))
    finally:
        kafka_server.resume()
    faults.clear()
    writer.timeout_s = 30.0
    assert list(writer.write_once(rows(range(3, 6)), at(1), at(2))) == []

    # A broker answers a commit before it has marked the partitions.
    wait_until(lambda: stored() == numbers(range(6)))
    assert recovered(open_writer()) == at(2)


def test_a_new_producer_that_could_not_begin_is_not_used(open_writer, rows, stored, kafka_server):
    writer = open_writer()
    writer.recover()
    writer.timeout_s = 1.0
    kafka_server.pause()
    try:
        with pytest.raises(RetryableError, match="begin with transactions"):
            writer._begin_anew()
    finally:
        kafka_server.resume()
    writer.timeout_s = 30.0

    with pytest.raises(FencedError):
        writer.write_once(rows(range(3)), at(0), at(1))
    # A broker that stood still is cut off from its controller for a while.
    assert recovered(writer) is None
    writer.write_once(rows(range(3)), at(0), at(1))

    wait_until(lambda: stored() == numbers(range(3)))


def test_one_that_is_shut_out_while_messages_are_refused_says_so(
    open_writer, brokers, topic, faults
):
    create(brokers, topic, max_message_bytes=LIMIT)
    writer = open_writer()
    writer.recover()

    def shut_out(producer, abort, timeout_s):
        """Begin another writer when this one is asked to abort."""
        del faults["abort_transaction"]
        open_writer().recover()
        return abort(timeout_s)

    faults["abort_transaction"] = shut_out

    with pytest.raises(FencedError):
        writer.write_once(messages([(topic, b"k", noise(2 * LIMIT))]), at(0), at(1))
    assert faults == {}


def test_a_search_for_what_is_refused_that_fails_leaves_no_transaction_open(
    open_writer, brokers, topic, stored, faults
):
    create(brokers, topic, max_message_bytes=LIMIT)
    writer = open_writer()
    writer.recover()

    def fail_in_the_search(producer, flush, timeout_s):
        waiting = flush(timeout_s)
        if producer.id.endswith("/probe") and not waiting and not producer.failures:
            del faults["flush"]
            raise RetryableError("away")
        return waiting

    faults["flush"] = fail_in_the_search
    given = [(topic, b"k", value(0)), (topic, b"k", noise(2 * LIMIT))]
    with pytest.raises(RetryableError, match="away"):
        writer.write_once(messages(given), at(0), at(1))
    assert faults == {}

    other = Producer({"bootstrap.servers": brokers})
    other.produce(topic, value(7))
    assert other.flush(PATIENCE_S) == 0
    assert stored() == [value(7)]


def test_a_topic_of_positions_that_was_just_made_may_have_no_leader_yet(
    monkeypatch, open_writer, rows, stored
):
    real, refused = confluent_kafka.Consumer, []

    class _Hears(real):
        def get_watermark_offsets(self, *arguments, **more):
            if len(refused) < 3:
                refused.append(arguments)
                code = confluent_kafka.KafkaError.NOT_LEADER_FOR_PARTITION
                raise confluent_kafka.KafkaException(confluent_kafka.KafkaError(code))
            return super().get_watermark_offsets(*arguments, **more)

    monkeypatch.setattr(confluent_kafka, "Consumer", _Hears)
    writer = open_writer()
    assert writer.recover() is None
    assert list(writer.write_once(rows(range(3)), SinkPosition({}), at(1))) == []
    assert len(refused) == 3
    assert stored() == numbers(range(3))
