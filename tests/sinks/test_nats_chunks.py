"""Rows of a chunk in a stream: of one view, each once, whoever appends them."""

import threading
import uuid

import pytest

from airflow_provider_deltaforge.engine.deliver.sink_fences import SinkFence, SinkFences
from airflow_provider_deltaforge.errors import FencedError, RetryableError
from airflow_provider_deltaforge.sinks.chunk_rows import ChunkMark
from airflow_provider_deltaforge.sinks.nats import NatsSink
from airflow_provider_deltaforge.sinks.nats.chunk_rows import KeptRows
from airflow_provider_deltaforge.sinks.position_contract import SinkPosition
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.testing.sinks import messages, value
from tests.engine.in_process import InProcess
from tests.sinks import nats_reader as reader

BEGIN = SinkPosition({"gtid": "a:1"})
HALF = 150


class LateClaim(SinkFence):
    """A claim of a writer to which something happens once its rows are kept."""

    happens = None

    def keep(self, run, notes):
        super().keep(run, notes)
        happens, self.happens = self.happens, None
        if happens is not None:
            happens()


class Place:
    """A stream of its own, and writers as the engine opens them: each in a process of its own."""

    def __init__(self, url):
        self.url, self.name = url, f"S{uuid.uuid4().hex[:8]}"
        self.pipeline = InProcess()
        self.context = self.pipeline.context()
        self.sink = NatsSink(
            url=url, subject=f"{self.name}.rows", stream=self.name, exactly_once=True
        )
        self._opened = []
        self.make()

    def make(self):
        reader.add_stream(self.url, self.name, f"{self.name}.>")

    def open(self, *, context=None, happens=None, is_copier=True):
        context = context or self.context
        sink = self.sink.without_position() if is_copier else self.sink
        writer = sink.open(self.pipeline.name)
        self._opened.append(writer)
        right = LateClaim(context, SinkFences(context), sink.id, lambda: True)
        writer.fence(right)
        right.happens = happens
        return writer

    def marks(self):
        self._opened.append(self.sink.open_row_marks(self.pipeline.name))
        return self._opened[-1]

    def rows(self, span):
        return messages([(f"{self.name}.rows", b"k%d" % n, value(n)) for n in span])

    def interrupted(self, span):
        """Append a chunk to a stream that is full in the middle of it, and die."""
        first = reader.count(self.url, self.name)
        self.change(max_msgs=first + HALF, discard="new")
        with pytest.raises(RetryableError):
            self.open().write_chunk(self.rows(span), mark(1))
        self.change(max_msgs=-1)
        assert reader.count(self.url, self.name) == first + HALF

    def change(self, **settings):
        reader.change_stream(self.url, self.name, **settings)

    def read(self):
        return reader.numbers(reader.values(self.url, self.name))

    def kept(self):
        """Return the names of what is kept for chunks that are on their way."""
        stored = self.pipeline.store.items(names.SNAPSHOTS, f"{self.pipeline.name}/notes/")
        return [key for key, _ in stored if not key.endswith("/end")]

    def close(self):
        for writer in self._opened:
            writer.close()


@pytest.fixture
def place(nats_server):
    place = Place(nats_server.dsn())
    yield place
    place.close()


def mark(view, *, chunk="t/1", is_first=False):
    return ChunkMark(f"run/{chunk}", f"view {view}", is_first)


def test_a_chunk_that_was_interrupted_goes_on_with_the_rows_of_its_view(place):
    place.interrupted(range(400))

    writer = place.open()
    later = writer.write_chunk(place.rows(range(300, 500)), mark(2))

    assert later.text == "view 1"
    assert place.read() == list(range(400))
    assert place.open().write_chunk(place.rows([]), mark(3)).text == "view 1"
    assert writer.row_mark == place.marks().leave()
    assert place.kept() == []


def test_kept_rows_are_those_that_were_read():
    rows = [("a.x", b"k", b"1"), ("a.y", None, b"2"), ("a.x", b"\xc3\xa9", None), ("a", b"", b"")]
    headers = [None, [("h", "\u00e9"), ("i", "")], [], None]
    read = messages(rows, headers).slice(1, 3)

    kept = KeptRows.from_note("v", KeptRows("v", read, '{"gtid": "\u00e9"}').as_note())

    assert kept.text == '{"gtid": "\u00e9"}'
    assert kept.messages.same_as(read)
    assert kept.messages.headers.equals(read.headers)
    assert kept.messages.event_rows.to_pylist() == [1, 2, 3]
    plain = KeptRows.new(messages(rows), "")
    assert KeptRows.from_note("v", plain.as_note()).messages.headers is None


def test_changes_are_behind_the_whole_chunk(place):
    place.open(is_copier=False).recover()
    place.interrupted(range(400))

    stream = place.open(is_copier=False)
    assert stream.recover() is None
    assert not stream.write_once(place.rows([1000]), BEGIN, BEGIN)

    assert place.open().write_chunk(place.rows(range(5)), mark(2)).text == "view 1"
    assert place.read() == [*range(400), 1000]
    again = place.open(is_copier=False).recover()
    assert again.position == BEGIN.position


def test_the_stream_goes_on_behind_chunks_that_are_copied_beside_it(place):
    stream, copier = place.open(is_copier=False), place.open()
    assert stream.recover() is None
    for chunk in range(4):
        rows = place.rows(range(chunk * 10, chunk * 10 + 7))
        assert copier.write_chunk(rows, mark(1, chunk=f"t/{chunk}", is_first=True)).text
        assert not copier.write(place.rows([chunk * 10 + 7, chunk * 10 + 8]))
        assert not stream.write_once(place.rows([chunk * 10 + 9]), BEGIN, BEGIN)

    assert place.read() == list(range(40))
    assert place.open(is_copier=False).recover().position == BEGIN.position


def test_the_stream_does_not_go_on_behind_a_part_of_a_chunk(place):
    stream = place.open(is_copier=False)
    stream.recover()
    assert not stream.write_once(place.rows([1000]), BEGIN, BEGIN)
    place.interrupted(range(400))

    with pytest.raises(FencedError):
        stream.write_once(place.rows([1001]), BEGIN, BEGIN)
    assert place.read()[-1] < 400
    stream.recover()
    assert not stream.write_once(place.rows([1001]), BEGIN, BEGIN)

    assert place.read() == [1000, *range(400), 1001]


def test_a_stream_that_another_one_took_is_noticed_behind_copied_rows(place):
    stream, copier = place.open(is_copier=False), place.open()
    stream.recover()
    assert not stream.write_once(place.rows([0]), BEGIN, BEGIN)
    other = place.open(is_copier=False)
    other.recover()
    assert not other.write_once(place.rows([1]), BEGIN, BEGIN)
    assert copier.write_chunk(place.rows([2, 3]), mark(1, is_first=True)).text

    with pytest.raises(FencedError, match="another writer took"):
        stream.write_once(place.rows([4]), BEGIN, BEGIN)

    assert place.read() == [0, 1, 2, 3]


def test_a_stream_that_wakes_up_behind_its_successors_copy_adds_nothing(place):
    frozen = place.open(is_copier=False)
    frozen.recover()
    assert not frozen.write_once(place.rows([0]), BEGIN, BEGIN)
    successor = place.open(context=place.pipeline.context())
    assert successor.write_chunk(place.rows([1, 2]), mark(1, is_first=True)).text

    # The rows name its own last change, as those of a copy beside it would.
    with pytest.raises(FencedError):
        frozen.write_once(place.rows([3]), BEGIN, BEGIN)

    assert place.read() == [0, 1, 2]


def test_dead_letters_are_behind_the_whole_chunk(place):
    place.interrupted(range(400))

    writer = place.open()
    assert not writer.write(place.rows([1000]))

    assert place.read() == [*range(400), 1000]
    assert writer.row_mark == place.marks().leave()


def test_a_chunk_of_which_nothing_was_stored_is_read_again(place):
    place.change(max_msgs=1, discard="new")
    assert place.open().write_chunk(place.rows([7]), mark(1, chunk="t/0")).text
    with pytest.raises(RetryableError):
        place.open().write_chunk(place.rows(range(40)), mark(1))
    place.change(max_msgs=-1)
    assert place.kept() != []

    later = place.open().write_chunk(place.rows(range(30, 50)), mark(2))

    assert later.text == "view 2"
    assert place.read() == [7, *range(30, 50)]
    assert place.kept() == []


def test_writers_of_many_chunks_side_by_side_write_each_row_once(place):
    def copy(part):
        writer = place.open()
        for chunk in range(part, 6, 3):
            rows = place.rows(range(chunk * 400, chunk * 400 + 400))
            assert writer.write_chunk(rows, mark(1, chunk=f"t/{chunk}", is_first=True)).text

    copying = [threading.Thread(target=copy, args=(part,)) for part in range(3)]
    for thread in copying:
        thread.start()
    for thread in copying:
        thread.join(60)

    assert sorted(place.read()) == list(range(6 * 400))


def test_of_two_views_at_once_the_stream_takes_one(place):
    """As where an executor that was taken for lost goes on: both are of one epoch."""
    ended = []

    def copy(view):
        rows = place.rows(range(view * 1000, view * 1000 + 900))
        ended.append(place.open().write_chunk(rows, mark(view)).text)

    copying = [threading.Thread(target=copy, args=(view,)) for view in range(3)]
    for thread in copying:
        thread.start()
    for thread in copying:
        thread.join(60)

    held = place.read()
    assert held == list(range(held[0], held[0] + 900))
    assert ended == [f"view {held[0] // 1000}"] * 3
    assert place.kept() == []


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_writer_that_wakes_up_behind_its_successor_adds_nothing(place, is_begun):
    if is_begun:
        place.interrupted(range(400))

    def succeed():
        successor = place.open(context=place.pipeline.context())
        successor.write_chunk(place.rows(range(1000, 1400)), mark(2))

    frozen = place.open(happens=succeed)
    with pytest.raises(FencedError):
        frozen.write_chunk(place.rows(range(400)), mark(3))
    with pytest.raises(FencedError):
        frozen.write_chunk(place.rows(range(400)), mark(4, chunk="t/2", is_first=True))

    assert place.read() == list(range(400) if is_begun else range(1000, 1400))


def test_a_stream_that_lost_a_chunk_gets_it_again(place):
    place.interrupted(range(400))
    reader.remove_stream(place.url, place.name)
    place.make()
    writer = place.open()
    assert writer.write_chunk(place.rows(range(200)), mark(2)).text == "view 2"
    assert place.read() == list(range(200))
    assert place.marks().lost([writer.row_mark]) == set()
    reader.remove_stream(place.url, place.name)
    place.make()

    assert place.marks().lost([writer.row_mark]) == {writer.row_mark}
    assert place.open().write_chunk(place.rows(range(100)), mark(3)).text == "view 3"
    assert place.read() == list(range(100))


def test_rows_that_the_stream_has_let_go_of_are_not_written_again(place):
    place.interrupted(range(400))
    place.change(max_msgs=20, discard="old")

    assert place.open().write_chunk(place.rows(range(5)), mark(2)).text == "view 1"

    assert place.read() == list(range(380, 400))
    last = reader.stored(place.url, place.name)[-1][1]
    assert last["df-chunk"].endswith(" 399 400")
