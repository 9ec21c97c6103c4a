"""What a sink that holds the position itself is given of a log that is read again."""

import threading

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_deltaforge.engine.base.measurements import LaneMeasurements
from airflow_provider_deltaforge.engine.deliver.held_event import LogRows, rest_behind
from airflow_provider_deltaforge.engine.deliver.sink_thread import SinkBatch, SinkThread
from airflow_provider_deltaforge.engine.render.key_changes import delete_ids
from airflow_provider_deltaforge.engine.render.processed_batch import ProcessedBatch
from airflow_provider_deltaforge.errors import FencedError
from airflow_provider_deltaforge.events.message import Messages
from airflow_provider_deltaforge.sinks.position_contract import SinkPosition
from airflow_provider_deltaforge.storage.records.checkpoints import StoredPosition
from tests.engine.exact_memory import HELD, ExactSink
from tests.waiting import PATIENCE_S


def event(number):
    return number.to_bytes(16, "big")


def messages(*numbers, rows=None):
    count = len(numbers)
    return Messages(
        topics=pa.array(["topic"] * count).dictionary_encode(),
        keys=pa.array([b"key"] * count, pa.binary()),
        values=pa.array([b"value"] * count, pa.binary()),
        headers=None,
        event_ids=pa.array([event(number) for number in numbers], pa.binary(16)),
        event_rows=pa.array(range(count) if rows is None else rows, pa.int32()),
    )


class Ours:
    """The sink's thread, with the sink's checkpoint beside it."""

    def __init__(self, log, stand):
        self.held = HELD[log]
        self.stand = stand
        self._sink = ExactSink(log=log)
        self.measured = LaneMeasurements()
        self.restart()

    def restart(self):
        self.thread = SinkThread(self._sink, "pipeline", self, threading.Event())

    def report_sink_error(self, sink_id, error):
        pass

    def write(self, at, *numbers):
        self.thread.submit(SinkBatch(messages(*numbers), at, self.stand))
        outcome = self.thread.result(PATIENCE_S)
        if outcome.error is not None:
            raise outcome.error
        if at is not None:
            self.store(at)

    def store(self, at):
        if not self.thread.is_searching(self.stand):
            self.stand = StoredPosition(at, self.thread.holds(self.stand))

    @property
    def numbers(self):
        return [int.from_bytes(one, "big") for one in self.held.ids]


@pytest.fixture
def ours(request):
    made = Ours(request.node.name, StoredPosition({"tx": 0}, ()))
    yield made
    made.thread.close()


def test_the_part_of_a_transaction_that_is_held_is_not_given_when_it_is_read_again(ours):
    ours.write(None, 1, 2)
    ours.thread.read_again()
    ours.write(None, 1)
    ours.write({"tx": 1}, 2, 3)
    assert ours.numbers == [1, 2, 3]


def test_what_the_checkpoint_does_not_know_of_is_not_given_twice_when_it_is_read_again(ours):
    ours.write({"tx": 1}, 1)
    ours.thread.submit(SinkBatch(messages(2, 3), {"tx": 2}, ours.stand))
    assert ours.thread.result(PATIENCE_S).error is None  # But the checkpoint cannot be stored.
    ours.thread.read_again()
    with pytest.raises(FencedError, match="holds more"):
        ours.write({"tx": 2}, 2, 3)
    assert ours.numbers == [1, 2, 3]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_checkpoint_does_not_move_towards_the_held_event(ours, restarts):
    ours.held.values += [(event(1), b""), (event(2), b"")]
    ours.held.cursors += [SinkPosition({"tx": 0}, event(1)), SinkPosition({"tx": 0}, event(2))]
    ours.stand = StoredPosition({"tx": 0}, (SinkPosition({"tx": 0}, event(2)).as_text().decode(),))
    ours.store({"tx": 1})  # Nothing in it was for this sink.
    ours.write({"tx": 2}, 1)
    assert ours.stand.position == {"tx": 0}
    if restarts:
        ours.thread.close()
        ours.restart()
    ours.write({"tx": 3}, 2, 3)
    assert ours.stand.position == {"tx": 3}
    assert ours.numbers == [1, 2, 3]


def test_a_transaction_whose_end_holds_nothing_for_the_sink_is_over(ours):
    ours.write(None, 1)
    ours.store({"tx": 1})
    ours.write(None, 2)
    ours.thread.close()
    ours.restart()
    told = ours.held.cursor
    assert told == SinkPosition({"tx": 1}, event(2))


def rows(*numbers):
    ids = pa.array([event(number) for number in numbers], pa.binary(16))
    return pa.RecordBatch.from_arrays([ids], ["event_id"])


def rest(held, sent, log):
    """Return the numbers of the messages behind an event; None where it is not found."""
    found = rest_behind(held, sent, log)
    if found is None:
        return None
    return [int.from_bytes(each, "big") for each in found.event_ids.to_pylist()]


def log_of(source, processed, origins=None):
    made_of = None if origins is None else np.array(origins, np.int32)
    return LogRows(rows(*source), ProcessedBatch(rows(*processed), made_of))


LOG = range(1, 6)
# The processors made 30 and 31 of the third row, and dropped it and the second one.
PROCESSED, ORIGINS = (1, 30, 31, 4, 5), (0, 2, 2, 3, 4)


@pytest.mark.parametrize(
    ("held", "left"),
    [
        (1, [30, 31, 5]),
        (30, [31, 5]),
        (4, [5]),  # The sink's filter leaves it out, behind the processors.
        (2, [30, 31, 5]),
        (3, [30, 31, 5]),  # What was made of it may have been on either side.
        (5, []),
        (9, None),
    ],
)
def test_the_rest_of_a_batch_lies_behind_the_event_that_is_held_whoever_leaves_it_out(held, left):
    sent = messages(1, 30, 31, 5, rows=[0, 1, 2, 4])
    assert rest(event(held), sent, log_of(LOG, PROCESSED, ORIGINS)) == left


@pytest.mark.parametrize(("held", "left"), [(3, [3, 5]), (2, [3, 5]), (4, [5])])
def test_where_the_delete_of_a_former_key_is_held_its_row_is_still_lacking(held, left):
    """Keys are not split any more: the delete is a message of its own no longer."""
    delete = delete_ids(rows(held)["event_id"])[0].as_py()
    sent = messages(1, 3, 5, rows=[0, 1, 2])
    assert rest(delete, sent, log_of(LOG, (1, 3, 5), (0, 2, 4))) == left
