"""The control record, the epoch and the progress of a pipeline."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_provider_deltaforge.errors import FencedError, SpecError
from airflow_provider_deltaforge.storage import moments, names
from airflow_provider_deltaforge.storage.contract import Put
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.control import ALIVE_S, Control, Progress
from airflow_provider_deltaforge.storage.records.dead_letters import DeadLetterRecords
from airflow_provider_deltaforge.storage.records.heartbeats import HEARTBEATS
from airflow_provider_deltaforge.storage.records.stats import Latency, SinkProgress


@pytest.fixture(params=["memory", "sqlite"])
def store(request):
    dsn = f"memory://{request.node.nodeid}"
    if request.param == "sqlite":
        dsn = request.getfixturevalue("sqlite_dsn")
    opened = StoreLocation.from_dsn(dsn).create()
    yield opened
    opened.close()


@pytest.fixture
def control(store):
    return Control(store, "orders")


def _progress(**told) -> Progress:
    given = {"status": "running", "since_ms": 1, "epoch": 1, "generation": 1, "heartbeat_at_ms": 1}
    return Progress(**{**given, **told})


def test_before_it_is_applied_a_pipeline_is_nothing(control):
    assert control.read() is None
    assert control.document() is None
    assert control.progress() is None
    assert control.epoch() == 0
    assert not control.alive()
    assert Control.list_pipelines(control.store) == []


def test_apply_keeps_the_document_as_it_was_written(control):
    text = "password: ${DB_PASSWORD}\nname: größe\n"
    record = control.apply(text, "hash1", "shop")
    assert control.document() == text
    assert (record.desired, record.generation) == ("stopped", 0)
    assert (record.spec_hash, record.source_id) == ("hash1", "shop")
    assert control.read() == record
    assert Control.list_pipelines(control.store) == ["orders"]


def test_apply_again_changes_the_document_and_keeps_the_wish(control):
    control.apply("one", "hash1", "shop")
    control.update(lambda old: old.model_copy(update={"desired": "running", "generation": 4}))
    record = control.apply("two", "hash2", "shop")
    assert (record.desired, record.generation, record.spec_hash) == ("running", 4, "hash2")
    assert control.document() == "two"


def test_a_second_pipeline_with_the_same_source_id_is_refused_and_changes_nothing(control, store):
    control.apply("one", "h", "shop")
    other = Control(store, "invoices")
    with pytest.raises(SpecError, match="'shop' belongs to pipeline 'orders'") as caught:
        other.apply("two", "h", "shop")
    for way in (
        "choose another id",
        "delete 'orders'",
        "`deltaforge reset orders --confirm orders`",
    ):
        assert way in str(caught.value)
    assert other.read() is None
    assert Control.list_pipelines(store) == ["orders"]


def test_a_source_id_is_free_again_when_its_pipeline_left_it(control, store):
    control.apply("one", "h", "shop")
    control.apply("two", "h", "shop2")
    Control(store, "invoices").apply("three", "h", "shop")
    with pytest.raises(SpecError, match="invoices"):
        control.apply("four", "h", "shop")


def test_one_of_many_who_claim_a_source_id_at_once_gets_it(store):
    start = threading.Barrier(6)

    def claim(number):
        start.wait()
        try:
            Control(store, f"p{number}").apply("text", "h", "shop")
        except SpecError:
            return 0
        return 1

    with ThreadPoolExecutor(6) as threads:
        assert sum(threads.map(claim, range(6))) == 1


def test_a_claim_seen_before_its_record_was_kept_is_not_taken_over_afterwards(control, store):
    late = Control(_Late(store, lambda: control.apply("one", "h", "shop")), "invoices")
    store.swap(names.CLAIMS, "shop", 0, b"orders")  # Claimed, and nothing kept yet.
    with pytest.raises(SpecError, match="belongs to pipeline 'orders'"):
        late.apply("two", "h", "shop")
    assert Control.list_pipelines(store) == ["orders"]


class _Late:
    """A store whose first swap comes only after somebody else has done something."""

    def __init__(self, store, before):
        self._store, self._before = store, [before]

    def __getattr__(self, name):
        return getattr(self._store, name)

    def swap(self, *arguments):
        if self._before:
            self._before.pop()()
        return self._store.swap(*arguments)


def test_changes_of_many_at_once_are_all_made(control):
    def restart(number):
        control.update(lambda old: old.model_copy(update={"restarts": [*old.restarts, number]}))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(restart, range(40)))
    record = control.read()
    assert sorted(record.restarts) == list(range(40))
    assert record.updated_at_ms > 0


def test_each_driver_takes_the_next_epoch_and_fences_the_one_before(control, store):
    first, second = control.take_epoch("driver1"), control.take_epoch("driver2")
    assert (first.version, second.version, control.epoch()) == (1, 2, 2)
    with pytest.raises(FencedError):
        store.transact([control.put_progress(_progress(reason="late"))], first)
    assert control.progress() is None
    store.transact([control.put_progress(_progress(reason="mine"))], second)
    assert control.progress().reason == "mine"


def test_another_lane_of_the_same_driver_fences_its_first_lane_only(control, store):
    first = control.take_epoch("driver1")
    again = control.renew_epoch("driver1")
    assert again.version == first.version + 1
    assert control.held_epoch("driver1") == again
    with pytest.raises(FencedError):
        store.transact([], first)
    control.take_epoch("driver2")
    for attempt in (control.renew_epoch, control.held_epoch):
        with pytest.raises(FencedError, match="newer driver"):
            attempt("driver1")


def test_drivers_that_start_at_once_have_different_epochs(control):
    with ThreadPoolExecutor(4) as threads:
        fences = list(threads.map(lambda n: control.take_epoch(f"driver{n}"), range(20)))
    assert sorted(fence.version for fence in fences) == list(range(1, 21))


def test_progress_comes_back_as_it_was_written(control, store):
    told = _progress(
        status="blocked",
        reason="kafka is away",
        error_class="retryable",
        position={"file": "binlog.000001", "pos": 4, "gtid_set": None},
        lag_ms=12,
        sinks={"kafka": SinkProgress(status="blocked", since_ms=5, retries=3, position={"pos": 4})},
        tables={"shop.orders": {"events": {"c": 2}}},
        latency=Latency(sum_s=3.0),
        host="h",
        pid=7,
    )
    store.transact([control.put_progress(told)])
    assert control.progress() == told


@pytest.mark.parametrize(
    ("status", "age_s", "alive"),
    [
        ("running", 0, True),
        ("blocked", ALIVE_S - 1, True),
        ("running", ALIVE_S, False),
        ("stopped", 0, False),
        ("failed", 0, False),
    ],
)
@pytest.mark.parametrize("place", ["here", "elsewhere"])
def test_alive_is_who_spoke_lately_and_did_not_say_goodbye(
    control, store, monkeypatch, status, age_s, alive, place
):
    clock = [1000.0]
    monkeypatch.setattr(HEARTBEATS, "clock", lambda: clock[0])
    monkeypatch.setattr(moments, "now", lambda: clock[0])
    boot = moments.boot() if place == "here" else "another machine"
    store.transact([control.put_progress(_progress(status=status, boot=boot, beat_s=1000.0))])
    control.alive()
    clock[0] += age_s
    assert control.alive() is alive


def test_delete_forgets_everything_but_still_fences_the_old_driver(control, store):
    control.apply("one", "h", "shop")
    fence = control.take_epoch("driver1")
    checkpoint = Checkpoints(store, "orders", "shop").put("kafka", {"pos": 1})
    plan = Put(names.SNAPSHOTS, "orders/run", b"{}")
    letters = DeadLetterRecords(store, "orders")
    progress = control.put_progress(_progress())
    store.transact([checkpoint, plan, letters.push(b"{}"), progress], fence)
    neighbour = Control(store, "orders2")
    neighbour.apply("two", "h", "shop2")
    kept = DeadLetterRecords(store, "orders2")
    store.transact(
        [Checkpoints(store, "orders2", "shop2").put("kafka", {"pos": 2}), kept.push(b"{}")]
    )

    control.delete()

    assert control.read() is None
    assert control.document() is None
    assert control.progress() is None
    assert Checkpoints(store, "orders", "shop").load() == {}
    assert store.items(names.SNAPSHOTS, "orders/") == []
    assert (letters.count(), kept.count()) == (0, 1)
    with pytest.raises(FencedError):
        store.transact([checkpoint], fence)
    assert Control.list_pipelines(store) == ["orders2"]
    assert Checkpoints(store, "orders2", "shop2").load() == {"kafka": {"pos": 2}}


def test_a_deleted_pipeline_begins_anew_with_a_later_epoch(control, store):
    control.apply("one", "h", "shop")
    former = control.take_epoch("driver1").version
    control.update(lambda old: old.model_copy(update={"desired": "running", "generation": 3}))
    control.delete()
    control.apply("two", "h", "shop")
    record = control.read()
    assert (record.desired, record.generation) == ("stopped", 0)
    assert control.take_epoch("driver2").version > former


def test_delete_frees_the_source_id(control, store):
    control.apply("one", "h", "shop")
    control.delete()
    control.delete()
    Control(store, "invoices").apply("two", "h", "shop")


class _Killed(BaseException):
    pass


class _Dying:
    """A store whose process is killed before its write number ``left`` + 1."""

    def __init__(self, store, left):
        self._store, self._left = store, left

    def __getattr__(self, name):
        real = getattr(self._store, name)
        if name not in ("put", "delete", "swap", "transact", "drop_oldest"):
            return real

        def write(*args, **kwargs):
            if self._left == 0:
                raise _Killed
            self._left -= 1
            return real(*args, **kwargs)

        return write


@pytest.mark.parametrize("writes", range(6))
def test_delete_killed_between_any_two_writes_leaves_no_half_of_a_pipeline(control, store, writes):
    control.apply("one", "h", "shop")
    checkpoint = Checkpoints(store, "orders", "shop").put("kafka", {"pos": 1})
    records = [Put(names.SNAPSHOTS, f"orders/{key}", b"{}") for key in ("done/1/a", "initial")]
    letters = DeadLetterRecords(store, "orders")
    told = [letters.push(b"{}"), control.put_progress(_progress())]
    store.transact([checkpoint, *records, *told])
    dying = Control(_Dying(store, writes), "orders")
    if writes < 5:
        with pytest.raises(_Killed):
            dying.delete()
    else:
        dying.delete()
    present = [
        len(store.items(names.CHECKPOINTS, "orders/")),
        len(store.items(names.SNAPSHOTS, "orders/")),
        len(Control.list_pipelines(store)),
    ]
    assert present == ([1, 2, 1] if writes < 2 else [0, 0, 0])
    assert letters.count() == (writes < 3)
    control.delete()
    assert control.read() is None
    assert letters.count() == 0
    Control(store, "invoices").apply("two", "h", "shop")


def test_a_pipeline_that_is_applied_during_its_delete_is_whole(control, store, monkeypatch):
    control.apply("one", "h", "shop")
    purge = DeadLetterRecords.purge

    def applied_meanwhile(letters):
        Control(store, "orders").apply("two", "h2", "shop")
        return purge(letters)

    monkeypatch.setattr(DeadLetterRecords, "purge", applied_meanwhile)
    control.delete()
    assert (control.document(), control.read().spec_hash) == ("two", "h2")
    with pytest.raises(SpecError, match="belongs to pipeline 'orders'"):
        Control(store, "invoices").apply("three", "h", "shop")


def test_a_driver_that_starts_during_a_delete_keeps_its_positions(control, store, monkeypatch):
    control.apply("one", "h", "shop")
    store.transact([Checkpoints(store, "orders", "shop").put("kafka", {"pos": 1})])
    real = control.take_epoch

    def overtaken(driver):
        fence = real(driver)
        real("driver2")
        return fence

    monkeypatch.setattr(control, "take_epoch", overtaken)
    with pytest.raises(FencedError):
        control.delete()
    assert Checkpoints(store, "orders", "shop").load() == {"kafka": {"pos": 1}}


@pytest.mark.parametrize("writes", range(6))
def test_apply_killed_between_any_two_writes_keeps_no_id_it_does_not_use(control, store, writes):
    control.apply("one", "h", "shop")
    dying = Control(_Dying(store, writes), "orders")
    with contextlib.suppress(_Killed):
        dying.apply("two", "h2", "shop2")
    used = control.read().source_id
    other = Control(store, "invoices")
    with pytest.raises(SpecError, match="belongs to pipeline 'orders'"):
        other.apply("x", "h", used)
    free = "shop2" if used == "shop" else "shop"
    assert other.apply("x", "h", free).source_id == free
    with pytest.raises(SpecError, match="belongs to pipeline 'invoices'"):
        control.apply("two", "h2", free)
    assert control.read().source_id == used


@pytest.mark.parametrize("known", [True, False])
def test_an_apply_whose_claim_was_taken_over_half_way_changes_nothing(control, store, known):
    if known:
        control.apply("one", "h", "shop")
    real = store.put
    other = Control(store, "invoices")

    class Overtaken:
        def __getattr__(self, name):
            return getattr(store, name)

        def put(self, namespace, key, value, ttl_s=None):
            if value == b"two":
                other.apply("three", "h3", "shop2")
            real(namespace, key, value, ttl_s)

    with pytest.raises(SpecError, match="belongs to pipeline 'invoices'"):
        Control(Overtaken(), "orders").apply("two", "h2", "shop2")
    if known:
        assert (control.document(), control.read().source_id) == ("one", "shop")
    else:
        assert (control.document(), control.read()) == (None, None)
    assert other.read().source_id == "shop2"
