"""The chain: what becomes of rows between the source and rendering, whatever processors do."""

import pyarrow as pa
import pytest

from airflow_provider_deltaforge.engine.base.processor_stats import ProcessorStats
from airflow_provider_deltaforge.engine.render.processor_chain import ProcessorChain
from airflow_provider_deltaforge.errors import EventError, FatalError, RetryableError, SpecError
from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA
from airflow_provider_deltaforge.events.message import Rejection
from airflow_provider_deltaforge.processors.contract import Processed
from tests.engine.planted import CLOSED, Planted, doubling, keeping, plant, refusing


class Watcher:
    def __init__(self):
        self.told = []

    def report_processor_error(self, processor_id, error):
        self.told.append((processor_id, error and str(error)))


def change(number, tx_end=False, **more):
    return {
        "op": "c",
        "db": "shop",
        "table": "orders",
        "after": b'{"id":%d}' % number,
        "key": b'{"id":%d}' % number,
        "ts_ms": number,
        "tx": 0,
        "row": number,
        "tx_end": tx_end,
        "event_id": b"%016d" % number,
        **more,
    }


def batch(*changes):
    return pa.RecordBatch.from_pylist(list(changes), schema=CHANGE_SCHEMA)


@pytest.fixture
def chain(monkeypatch):
    opened = []

    def of(_ending=lambda: False, **works):
        plant(monkeypatch, **works)
        processor_stats, watcher = ProcessorStats(), Watcher()
        made = ProcessorChain(
            [Planted(id=name) for name in works], processor_stats, watcher, _ending
        )
        made.processor_stats, made.watcher = processor_stats, watcher
        opened.append(made)
        made.open()
        return made

    yield of
    for made in opened:
        made.close()


def ids(rows):
    return rows["event_id"].to_pylist()


def afters(rows):
    return [text.decode() for text in rows["after"].to_pylist()]


def even(text):
    return int(text[6:-1]) % 2 == 0


def test_processors_run_in_the_order_of_the_document(chain):
    def add(letter):
        def work(rows):
            at = CHANGE_SCHEMA.get_field_index("after")
            texts = pa.array([text + letter for text in rows["after"].to_pylist()], pa.binary())
            return Processed(rows.set_column(at, CHANGE_SCHEMA.field(at), texts))

        return work

    done = chain(first=add(b"1"), second=add(b"2")).process(batch(change(7)))
    assert afters(done.rows) == ['{"id":7}12']
    assert done.origins is None


def test_origins_are_rows_of_the_source_through_every_processor(chain):
    rows = batch(*(change(number) for number in range(5)))
    done = chain(
        even=keeping(even), twice=doubling, big=keeping(lambda t: t != b'{"id":0}')
    ).process(rows)
    assert afters(done.rows) == ['{"id":2}', '{"id":2}', '{"id":4}', '{"id":4}']
    assert [done.origin(row) for row in range(4)] == [2, 2, 4, 4]


def test_made_events_have_ids_of_their_own_that_are_the_same_in_any_other_batch(chain):
    rows = batch(*(change(number) for number in range(4)))
    made = chain(twice=doubling, again=doubling)
    whole = made.process(rows).rows
    parts = [made.process(rows.slice(0, 1)).rows, made.process(rows.slice(1)).rows]

    assert len(set(ids(whole))) == 16
    assert ids(whole)[::4] == ids(rows)
    assert ids(whole) == [one for part in parts for one in ids(part)]
    assert all(one[6] >> 4 == 8 and one[8] >> 6 == 2 for one in ids(whole) if one not in ids(rows))


def test_the_ids_of_made_events_are_kept_for_good(chain):
    """Another id after an upgrade would deliver the event under a second name."""
    (_, made) = ids(chain(twice=doubling).process(batch(change(1))).rows)
    assert made.hex() == "a30aa21116e98cf9b0f9e4e5dd00c349"


def test_made_events_carry_the_mark_of_the_first_processor_that_made_them(chain):
    rows = batch(change(1), change(2, synthetic="elsewhere"))
    done = chain(twice=doubling, again=doubling).process(rows)
    assert done.rows["synthetic"].to_pylist() == [
        *[None, "again", "twice", "twice"],
        *["elsewhere"] * 4,
    ]


def test_copies_stand_behind_their_event_with_its_key(chain):
    done = chain(twice=doubling).process(batch(change(1), change(2)))
    assert done.rows["key"].to_pylist() == [b'{"id":1}'] * 2 + [b'{"id":2}'] * 2


def test_a_transaction_ends_with_its_last_row_that_is_left(chain):
    rows = batch(
        *[change(0), change(1), change(2), change(3, tx_end=True)],
        *[change(5, tx_end=True)],
        # The ordinals begin anew where a batch was joined from two.
        *[change(6, tx=0), change(7, tx=0, tx_end=True), change(8, tx=1)],
    )
    done = chain(even=keeping(even)).process(rows)
    assert [(done.rows["row"][row].as_py(), end) for row, end in enumerate(ends(done.rows))] == [
        *[(0, False), (2, True)],
        *[(6, True), (8, False)],
    ]


def test_a_transaction_ends_with_the_last_of_its_copies(chain):
    rows = batch(change(0), change(1, tx_end=True), change(2))
    assert ends(chain(twice=doubling).process(rows).rows) == [
        *[False, False, False, True],
        *[False, False],
    ]


def ends(rows):
    return rows["tx_end"].to_pylist()


def test_refused_events_are_reported_as_they_came_with_the_row_of_the_source(chain):
    rows = batch(*(change(number, tx_end=True) for number in range(4)))
    done = chain(even=keeping(even), refuses=refusing(lambda text: text == b'{"id":2}')).process(
        rows
    )
    assert afters(done.rows) == ['{"id":0}']
    (refused,) = done.refused
    assert (refused.processor_id, afters(refused.rows)) == ("refuses", ['{"id":2}'])
    assert refused.origins.tolist() == [2]
    assert refused.rejections == [Rejection(0, "processor", "planted")]


def test_an_event_that_is_refused_for_two_reasons_is_reported_once(chain):
    def refuses(rows):
        twice = [Rejection(row, "processor", why) for row in (1, 0) for why in ("one", "two")]
        return Processed(rows.slice(0, 0), pa.array([], pa.int32()), rejections=twice)

    (refused,) = chain(refuses=refuses).process(batch(change(1), change(2))).refused
    assert afters(refused.rows) == ['{"id":1}', '{"id":2}']
    assert [one.reason for one in refused.rejections] == ["one", "one"]


def test_an_error_is_reported_without_the_one_beneath(chain):
    """Which may quote a row's values."""

    class AwayError(RetryableError):
        pass

    failures = [AwayError("the key server is away")]

    def work(rows):
        if failures:
            raise failures.pop() from KeyError(rows["after"][0].as_py())
        return Processed(rows)

    made = chain(away=work)
    made.process(batch(change(4711)))
    assert made.watcher.told[0] == ("away", "the key server is away")


def test_a_batch_without_events_meets_no_processor(chain):
    def never(rows):
        raise AssertionError(rows.num_rows)

    made = chain(none=keeping(lambda _: False), never=never)
    assert made.process(batch()).rows.num_rows == 0
    done = made.process(batch(change(1), change(2)))
    assert (done.rows.num_rows, done.origins.tolist()) == (0, [])


def test_statements_and_truncates_pass_with_neither_image(chain):
    rows = batch(
        change(1, op="ddl", after=None, key=None, ddl=b'{"sql":"DROP TABLE x"}'),
        change(2, op="t", after=None, key=None),
    )
    seen = []
    chain(looks=lambda given: seen.append(given) or Processed(given)).process(rows)
    assert seen[0].equals(rows)


def test_a_processor_that_cannot_work_now_is_tried_again_and_its_error_reported(chain):
    failures = [RetryableError("the key server is away")]

    def work(rows):
        if failures:
            raise failures.pop()
        return Processed(rows)

    made = chain(away=work)
    assert made.process(batch(change(1))).rows.num_rows == 1
    assert made.watcher.told == [
        ("away", "the key server is away"),
        ("away", None),
    ]


def test_trying_again_ends_with_the_lane(chain):
    over = []

    def away(rows):
        over.append(rows)
        raise RetryableError("away")

    with pytest.raises(RetryableError, match="processor away: away"):
        chain(lambda: bool(over), away=away).process(batch(change(1)))


@pytest.mark.parametrize("kind", [EventError, FatalError, RetryableError, SpecError])
def test_an_error_names_its_processor(chain, kind):
    def fails(_):
        raise kind("why")

    with pytest.raises(kind, match=r"^processor picky: why$"):
        chain(lambda: True, picky=fails).process(batch(change(1)))


def test_an_error_nobody_foresaw_names_the_processor_and_no_values(chain, caplog):
    def fails(rows):
        raise KeyError(rows["after"][0].as_py())

    with pytest.raises(FatalError, match="processor broken failed with KeyError") as raised:
        chain(broken=fails).process(batch(change(4711)))
    assert "4711" not in str(raised.value) + caplog.text
    assert raised.value.__suppress_context__
    assert "test_processor_chain.py" in caplog.text


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda rows: Processed(rows.slice(1)), "another number of events"),
        (lambda rows: Processed(rows, origins=pa.array([0, 2], pa.int32())), "origins"),
        (lambda rows: Processed(rows, origins=pa.array([0], pa.int32())), "origins"),
        (lambda rows: Processed(rows, origins=pa.array([0, None], pa.int32())), "origins"),
        (lambda rows: Processed(rows, made=pa.array([True])), "marks"),
        (lambda rows: Processed(rows.select(["op"])), "columns"),
        (lambda rows: Processed(rows, rejections=[Rejection(2, "processor", "")]), "rejections"),
        (lambda rows: Processed(rows, origins=pa.array([0, 0], pa.int32())), "one id"),
    ],
)
def test_a_processor_that_breaks_its_contract_is_fatal(chain, wrong, why):
    with pytest.raises(FatalError, match=f"processor wrong returned .*{why}"):
        chain(wrong=wrong).process(batch(change(1), change(2)))


def test_a_column_set_by_name_is_as_good(chain):
    def work(rows):
        return Processed(rows.set_column(0, "op", rows["op"]))

    assert chain(sets=work).process(batch(change(1))).rows.schema.equals(CHANGE_SCHEMA)


def test_every_worker_is_closed_also_when_one_of_them_does_not_open(chain, monkeypatch):
    made = chain(one=doubling, two=doubling)
    made.close()
    made.close()
    assert CLOSED == ["one", "two"]
    with pytest.raises(RetryableError, match="closed"):
        made.process(batch(change(1)))

    CLOSED.clear()
    broken = ProcessorChain(
        [Planted(id="one"), Planted(id="gone")], ProcessorStats(), Watcher(), lambda: False
    )
    with pytest.raises(FatalError, match="processor gone failed with KeyError"):
        broken.open()
    assert CLOSED == ["one"]


def test_work_is_counted_by_processor(chain):
    made = chain(even=keeping(even), refuses=refusing(lambda text: text == b'{"id":0}'))
    for _ in range(2):
        made.process(batch(*(change(number) for number in range(4))))
    told = made.processor_stats.report()
    assert [(told[name].events_in, told[name].events_out) for name in told] == [
        (8, 4),
        (4, 2),
    ]
    assert told["even"].counts == {"dropped": 4}
    assert (told["even"].errors, told["refuses"].errors) == (0, 2)
    assert sum(told["even"].latency.counts) == 2
