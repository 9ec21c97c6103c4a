"""The NATS sink against a real server."""

import threading
import uuid
from urllib.parse import unquote, unquote_to_bytes

import pytest

from airflow_provider_deltaforge.engine.render.former_keys import with_former_keys
from airflow_provider_deltaforge.engine.render.renderer import Renderer
from airflow_provider_deltaforge.errors import FatalError, RetryableError
from airflow_provider_deltaforge.sinks.nats import NatsSink
from airflow_provider_deltaforge.sinks.redelivery import redelivering
from airflow_provider_deltaforge.testing.changes import change, change_rows
from airflow_provider_deltaforge.testing.sinks import SinkContract, messages, value
from tests.envelopes.changes import ORIGIN
from tests.servers import nats
from tests.sinks import nats_reader as reader
from tests.waiting import PATIENCE_S, wait_until


@pytest.fixture
def server(nats_server):
    return nats_server


@pytest.fixture
def url(server):
    return server.dsn()


@pytest.fixture
def name(url):
    name = f"S{uuid.uuid4().hex[:8]}"
    reader.add_stream(url, name, f"{name}.>")
    yield name
    reader.remove_stream(url, name)


@pytest.fixture
def place(name):
    return f"{name}.orders"


@pytest.fixture
def open_writer(url, name):
    writers = []

    def open_one(**settings):
        given = {"url": url, "subject": f"{name}.${{source.table}}", "stream": name}
        writers.append(NatsSink(**{**given, **settings}).open("p"))
        return writers[-1]

    yield open_one
    for writer in writers:
        writer.close()


def rows(place, span, key=None):
    return messages([(place, b'{"id":%d}' % n if key is None else key, value(n)) for n in span])


class TestNatsSink(SinkContract):
    """What every sink promises."""

    @pytest.fixture
    def sink(self, url, name):
        return NatsSink(url=url, subject=f"{name}.orders", stream=name)

    @pytest.fixture
    def stored(self, url, name):
        return lambda: reader.values(url, name)

    def test_ids_let_the_server_drop_what_it_holds(self, sink, place, stored):
        batch = messages([(place, b"k", value(n)) for n in range(5)])
        for _ in range(2):
            writer = sink.open("p")
            writer.write(batch)
            writer.close()

        assert stored() == [value(n) for n in range(5)]


class TestMessages:
    """What a reader of the stream finds."""

    def test_what_is_delivered_again_on_purpose_is_not_dropped(self, url, name, place):
        batch = rows(place, range(3))
        sink = NatsSink(url=url, subject=f"{name}.orders", stream=name)
        for given in (sink, redelivering(sink, "again"), redelivering(sink, "again")):
            writer = given.open("p")
            writer.write(batch)
            writer.close()
        assert len(reader.values(url, name)) == 2 * 3

    def test_headers_are_the_ids_the_key_and_those_of_the_route(
        self, url, name, place, open_writer
    ):
        given = [("df-source-kind", "outbox"), ("Nats-Rollup", "all"), ("DF-Key", "forged")]
        batch = messages([(place, b'{"id":1}', value(1)), (place, None, value(2))], [given, None])

        open_writer(id="s").write(batch)

        ids = [uuid.UUID(bytes=each) for each in batch.event_ids.to_pylist()]
        one, two = (headers for _, headers, _ in reader.stored(url, name))
        assert one == {
            "Nats-Msg-Id": f"{ids[0]}:s",
            "df-key": '{"id":1}',
            "df-source-kind": "outbox",
        }
        assert two == {"Nats-Msg-Id": f"{ids[1]}:s"}

    @pytest.mark.parametrize(
        "subject",
        [
            *("{}.a b", "{}.*", "{}.a.>", "{}..a", ".{}", "{}.", "{}.a\tb", "elsewhere.{}"),
            *("$JS.API.STREAM.DELETE.{}", "{}." + "x" * 3001),
        ],
    )
    def test_an_illegal_subject_is_set_aside_and_the_rest_stored(
        self, subject, url, name, place, open_writer
    ):
        bad = subject.format(name)
        batch = messages([(place, None, value(0)), (bad, None, value(1)), (place, None, value(2))])

        (rejection,) = open_writer().write(batch)

        assert (rejection.event_row, rejection.kind) == (1, "routing")
        assert "subject" in rejection.reason
        assert reader.values(url, name) == [value(0), value(2)]

    def test_readers_tell_all_keys_and_headers_apart(self, url, name, place, open_writer):
        keys = [b"lead", b" lead", b"lead ", b"", b" ", b"\t", b"line\nbreak", b"%20lead", b"\xff"]
        keys += ["é😀\x85".encode(), b"a b~"]
        headers = [[("h", key.decode(errors="replace"))] for key in keys]
        writer = open_writer()

        for key, own in zip(keys, headers, strict=True):
            assert not writer.write(messages([(place, key, b"1")], [own]))

        found = [headers for _, headers, _ in reader.stored(url, name)]
        assert [unquote_to_bytes(each["df-key"]) for each in found] == keys
        assert [[("h", unquote(each["h"]))] for each in found] == headers
        assert found[-1]["df-key"] == "a b~"

    def test_a_message_larger_than_max_payload_is_set_aside(self, url, name, place, open_writer):
        limit = 1024 * 1024
        sizes = [10, limit - 20, limit + 1, limit - 300]
        batch = messages([(place, b"k", b"x" * size) for size in sizes])

        rejections = open_writer().write(batch)

        assert [(each.event_row, each.kind) for each in rejections] == [
            (1, "message_too_large"),
            (2, "message_too_large"),
        ]
        assert [len(each) for each in reader.values(url, name)] == [10, limit - 300]

    def test_a_message_larger_than_the_stream_takes_is_set_aside(self, url, name, open_writer):
        writer = open_writer()
        writer.write(rows(f"{name}.a", range(1)))
        reader.change_stream(url, name, max_msg_size=200)
        batch = messages([(f"{name}.a", b"k", b"x" * size) for size in (1, 500, 2)])

        rejections = writer.write(batch)

        assert [(each.event_row, each.kind) for each in rejections] == [(1, "message_too_large")]
        assert [len(each) for each in reader.values(url, name)] == [len(value(0)), 1, 2]


class TestStreams:
    """Which stream a subject belongs to."""

    def test_a_missing_stream_says_how_to_make_it(self, open_writer, place):
        writer = open_writer(stream="NOWHERE", subject="orders.${source.table}")

        with pytest.raises(FatalError, match=r"nats stream add NOWHERE --subjects 'orders\.>'"):
            writer.write(rows(place, range(1)))

    def test_a_stream_without_the_subject_says_what_it_takes(self, open_writer, name):
        writer = open_writer(subject="elsewhere.orders")

        with pytest.raises(FatalError, match=rf"does not take .*'elsewhere.orders', but {name}\.>"):
            writer.write(rows("elsewhere.orders", range(1)))

    def test_without_a_stream_the_one_that_takes_the_subject_acknowledges(
        self, url, name, place, open_writer
    ):
        writer = open_writer(stream=None, subject=place)

        writer.write(rows(place, range(100)))

        assert reader.values(url, name) == [value(n) for n in range(100)]

    def test_a_subject_added_later_is_found(self, url, name, open_writer):
        writer = open_writer()
        writer.write(rows(f"{name}.a", range(1)))
        assert [r.kind for r in writer.write(rows("late.a", range(1, 2)))] == ["routing"]
        reader.change_stream(url, name, subjects=[f"{name}.>", f"late{name}.>"])

        assert list(writer.write(rows(f"late{name}.a", range(2, 3)))) == []

        assert reader.values(url, name) == [value(0), value(2)]


class TestOrder:
    """A message that is not stored holds back the later ones of its key."""

    def test_a_full_stream_is_retryable_and_keeps_each_key_in_order(
        self, url, name, place, open_writer
    ):
        # A refused large message would otherwise be overtaken by the small ones behind it.
        reader.change_stream(url, name, max_bytes=4_000, discard="new")
        sizes = [3000, 2500, 100, 2000, 50, 60]
        keys = [b"a", b"b", b"b", b"c", b"b", b"a"]
        batch = messages([(place, *pair) for pair in zip(keys, map(padded, sizes), strict=True)])
        writer = open_writer()
        with pytest.raises(RetryableError, match="maximum bytes exceeded"):
            writer.write(batch)
        assert sizes_of(reader.stored(url, name), "b") == []

        reader.change_stream(url, name, max_bytes=1_000_000)
        assert list(writer.write(batch)) == []

        found = reader.stored(url, name)
        assert sizes_of(found, "a") == [3000, 60]
        assert sizes_of(found, "b") == [2500, 100, 50]
        assert sizes_of(found, "c") == [2000]

    def test_messages_without_a_key_stay_between_those_with_one(
        self, url, name, place, open_writer
    ):
        reader.change_stream(url, name, max_bytes=3_000, discard="new")
        rows = [(place, b"a", padded(2900)), (place, None, padded(10)), (place, b"b", padded(20))]
        writer = open_writer()
        writer.write(messages([(place, b"z", padded(50))]))
        with pytest.raises(RetryableError):
            writer.write(messages(rows))

        assert [len(each) for each in reader.values(url, name)] == [50]

    def test_a_row_that_changes_its_key_stays_behind_what_it_was(self, url, name, open_writer):
        large, small = (b'{"id":%d,"sku":"%s"}' % each for each in ((1, b"x" * 2500), (2, b"y")))
        rows = [
            change(after=large, key=b'{"id":1}'),
            change(op="u", before=b'{"id":1}', after=small, key=b'{"id":2}', event_id=bytes(16)),
        ]
        held_back(url, name, open_writer, rows)

    @pytest.mark.parametrize("key", [None, "${after.id}"])
    def test_a_truncate_stays_between_rows(self, url, name, open_writer, key):
        large = b'{"id":1,"sku":"%s"}' % (b"x" * 2500)
        rows = [
            change(after=large, key=b'{"id":1}'),
            change(op="t", after=None, key=None, event_id=bytes(16)),
        ]
        held_back(url, name, open_writer, rows, key=key)

    def test_rows_without_a_key_stay_behind_a_truncate(self, url, name, open_writer):
        large, small = (b'{"sku":"%s"}' % each for each in (b"x" * 2500, b"y"))
        rows = [
            change(op="t", after=None, key=None, ddl=large),
            change(after=small, key=None, event_id=bytes(16)),
        ]
        held_back(url, name, open_writer, rows)

    def test_an_old_copy_within_the_window_does_not_become_the_last_word(
        self, url, name, place, open_writer
    ):
        """The first of two has left the duplicate window when the pipeline begins again."""
        second = rows(place, [2], b"k")
        reader.publish(url, place, value(2), {"Nats-Msg-Id": id_of(second)})

        open_writer().write(rows(place, [1, 2], b"k"))

        assert reader.values(url, name) == [value(2), value(1), value(2)]

    def test_nor_does_one_behind_messages_that_wait_for_all_keys(
        self, url, name, place, open_writer
    ):
        """Of three, the first has left the window; the last has no key, as a truncate has none."""
        batch = messages([(place, key, value(n)) for n, key in enumerate((b"a", b"b", None))])
        for index in (1, 2):
            marked = {"Nats-Msg-Id": id_of(batch.slice(index, 1))}
            reader.publish(url, place, value(index), marked)

        open_writer().write(batch)

        assert reader.values(url, name) == [value(1), value(2), value(0), value(2)]


def held_back(url, name, open_writer, rows, **settings):
    """Expect that nothing is stored while the first change is too large for the stream."""
    sink = NatsSink(url=url, subject=f"{name}.${{source.table}}", stream=name, **settings)
    batch, _ = Renderer(sink, ORIGIN).render(with_former_keys(change_rows(rows)))
    reader.change_stream(url, name, max_bytes=3_000, discard="new")
    writer = open_writer()
    writer.write(messages([(f"{name}.orders", b"z", padded(50))]))
    with pytest.raises(RetryableError):
        writer.write(batch)
    assert [len(each) for each in reader.values(url, name)] == [50]

    reader.change_stream(url, name, max_bytes=1_000_000)
    assert list(writer.write(batch)) == []
    assert reader.values(url, name)[1:] == batch.values.to_pylist()


def padded(size):
    return b"x" * size


def sizes_of(found, key):
    return [len(data) for _, headers, data in found if headers.get("df-key") == key]


def id_of(batch):
    return f"{uuid.UUID(bytes=batch.event_ids[0].as_py())}:nats"


class TestOutage:
    """The server goes away in the middle, and comes back with what it stored."""

    @pytest.fixture
    def server(self, tmp_path):
        server = nats.start(tmp_path / "nats")
        yield server
        server.stop()

    def test_a_killed_server_neither_loses_nor_reorders(
        self, server, url, name, place, open_writer
    ):
        writer = open_writer(send_timeout_secs=2, connect_timeout_secs=2)
        for n in range(12):
            batch = rows(place, range(n * 50, n * 50 + 50))
            if n in {4, 8}:
                server.kill()
                with pytest.raises(RetryableError, match="up and reachable"):
                    writer.write(batch)
                server.start_again()
            until_written(writer, batch)

        assert reader.numbers(reader.values(url, name)) == list(range(600))

    def test_a_frozen_server_gets_each_message_once(self, server, url, name, place, open_writer):
        writer = open_writer(send_timeout_secs=1, connect_timeout_secs=1)
        until_written(writer, rows(place, range(10)))
        server.pause()
        batch = rows(place, range(10, 500))
        with pytest.raises(RetryableError, match="send_timeout_secs"):
            writer.write(batch)
        with pytest.raises(RetryableError, match="no answer in time"):
            writer.write(batch)
        server.resume()

        until_written(writer, batch)
        until_written(writer, rows(place, range(500, 510)))

        assert reader.numbers(reader.values(url, name)) == list(range(510))

    def test_a_batch_given_up_does_not_arrive_behind_a_newer_one(
        self, server, url, name, place, open_writer
    ):
        old = open_writer(send_timeout_secs=30)
        old.write(rows(place, range(1)))
        server.pause()
        failed = threading.Thread(target=expect_end, args=(old, rows(place, range(1, 3000))))
        failed.start()
        wait_until(lambda: old._delivery is not None and old._delivery.under_way > 1000)
        old.abandon()
        failed.join(PATIENCE_S)
        assert not failed.is_alive()
        old.close()
        server.resume()

        new = open_writer()
        until_written(new, rows(place, range(1, 3000)))
        until_written(new, rows(place, [9999]))

        found = reader.numbers(reader.values(url, name))
        assert found == [*range(3000), 9999]

    def test_closing_while_the_server_is_frozen_does_not_hang(self, server, place, open_writer):
        writer = open_writer()
        writer.write(rows(place, range(1)))
        server.pause()

        closing = threading.Thread(target=writer.close)
        closing.start()
        closing.join(PATIENCE_S)

        assert not closing.is_alive()
        server.resume()

    def test_an_idle_connection_that_broke_costs_no_failed_write(
        self, server, url, name, place, open_writer
    ):
        writer = open_writer()
        writer.write(rows(place, range(1)))
        server.stop()
        server.start_again()

        def written():
            writer.write(rows(place, range(1, 2)))
            return True

        wait_until(lambda: not writer._connection.streams.client.fit)
        assert written()
        assert reader.values(url, name) == [value(0), value(1)]


def expect_end(writer, batch):
    with pytest.raises(RetryableError, match="asked to end"):
        writer.write(batch)


def until_written(writer, batch):
    def written():
        try:
            writer.write(batch)
        except RetryableError:
            return False
        return True

    wait_until(written)
