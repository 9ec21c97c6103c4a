"""A driver on another machine, whose clock says what it likes: only its counter is believed."""

import threading
import time

import pytest

from airflow_provider_deltaforge.control import pipelines, snapshots, starting
from airflow_provider_deltaforge.control import status as status_module
from airflow_provider_deltaforge.control.launching.contract import JobState, JobStatus, LaunchSpec
from airflow_provider_deltaforge.control.status import status, statuses
from airflow_provider_deltaforge.errors import RetryableError, SpecError
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.control import ALIVE_S, Control
from airflow_provider_deltaforge.storage.records.heartbeats import HEARTBEATS
from tests.control.bench import DOCUMENT, wait_until
from tests.control.driver import progress

HOUR_S = 3600
SKEWS = pytest.mark.parametrize("ahead_s", [HOUR_S, 30, -30, -HOUR_S])


class Elsewhere:
    """A place whose processes cannot be asked about from here."""

    def submit(self, job):
        return {"name": job.name, "host": "elsewhere", "directory": ""}

    def status(self, handle):
        return JobStatus(JobState.UNKNOWN)


class Remote:
    """A driver of another machine, with a clock of its own."""

    def __init__(self, store, ahead_s=0.0):
        self.control = Control(store, "orders")
        self.fence = self.control.take_epoch("remote")
        self.ahead_s = ahead_s
        self.beats = 0
        self._ending = threading.Event()

    def beat(self, word="running"):
        beat = self.beats + 1
        generation = self.control.read().generation
        told = progress(word, self.fence.version, generation, beat, boot="another", host="far")
        skewed = told.model_copy(
            update={"heartbeat_at_ms": told.heartbeat_at_ms + int(self.ahead_s * 1000)}
        )
        self.control.store.transact([self.control.put_progress(skewed)], self.fence)
        self.beats = beat  # Who waits for it finds it in the store.

    def __enter__(self):
        self.beat()
        self._thread = threading.Thread(target=self._go_on, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ending.set()
        self._thread.join()

    def _go_on(self):
        while not self._ending.wait(0.05):
            self.beat()


class Clock:
    """Stands still until it is told to move; then whoever waits has waited.

    ``time.sleep`` is everybody's: threads that earlier tests have left sleep as they did.
    """

    def __init__(self):
        self.now = 1000.0
        self._sleep = time.sleep

    def __call__(self):
        return self.now

    def wait(self, seconds):
        if threading.current_thread() is threading.main_thread():
            self.now += seconds
        else:
            self._sleep(seconds)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(HEARTBEATS, "clock", clock)
    monkeypatch.setattr(status_module.time, "sleep", clock.wait)
    return clock


@pytest.fixture
def store(request):
    store = StoreLocation.from_dsn(f"memory://{request.node.name}").create()
    pipelines.apply(store, DOCUMENT)
    starting.start(store, LaunchSpec("orders", 0, "stream_job.py", "unused"), Elsewhere(), "first")
    return store


@SKEWS
def test_a_dead_driver_is_lost_whatever_its_clock_said(store, clock, ahead_s):
    Remote(store, ahead_s).beat()

    shown = status(store, "orders")
    assert shown.status == "lost"
    assert "its last heartbeat bears a time" in shown.reason
    assert [one.status for one in statuses(store)] == ["lost"]


def test_a_driver_that_died_a_moment_ago_is_lost_when_it_was_not_heard_for_a_while(store, clock):
    Remote(store).beat()

    assert status(store, "orders").status == "running"
    clock.wait(ALIVE_S + 1)
    assert status(store, "orders").status == "lost"


@SKEWS
def test_a_driver_that_speaks_runs_whatever_its_clock_says(store, ahead_s):
    with Remote(store, ahead_s):
        shown = status(store, "orders")

        assert shown.status == "running"
        assert shown.heartbeat_age_s < ALIVE_S


@SKEWS
def test_a_standby_leaves_a_driver_alone_that_speaks(store, clock, ahead_s):
    with Remote(store, ahead_s) as remote:
        for _ in range(20):
            heard = remote.beats
            wait_until(lambda: remote.beats > heard)  # noqa: B023 - called here
            assert starting.holder(store, "orders", Elsewhere()) is not None
            clock.wait(2)


@SKEWS
def test_a_standby_succeeds_a_dead_driver_once_it_was_silent_here(store, clock, ahead_s):
    Remote(store, ahead_s).beat()
    began = clock.now
    while starting.holder(store, "orders", Elsewhere()) is not None:
        clock.wait(2)

    assert ALIVE_S <= clock.now - began < 2 * ALIVE_S


def test_a_store_that_was_away_is_no_silence(store, clock, monkeypatch):
    remote = Remote(store)
    remote.beat()
    assert starting.holder(store, "orders", Elsewhere()) is not None

    def away(*_):
        raise RetryableError("the store is away")

    with monkeypatch.context() as patched:
        patched.setattr(type(store), "get", away)
        with pytest.raises(RetryableError):
            status(store, "orders")
        clock.wait(HOUR_S)
    assert starting.holder(store, "orders", Elsewhere()) is not None


@SKEWS
def test_a_driver_elsewhere_that_speaks_is_adopted(store, ahead_s):
    with Remote(store, ahead_s):
        again = starting.start(
            store, LaunchSpec("orders", 0, "stream_job.py", "unused"), Elsewhere(), "second"
        )
    assert (again.adopted, again.generation) == (True, 1)


def take(store, clock, said):
    return starting.take_generation(
        store, "orders", "me", backend=Elsewhere(), tell=said.append, rest=clock.wait
    )


def test_a_driver_in_this_process_waits_for_one_elsewhere_and_says_so(store, clock):
    Remote(store, -HOUR_S).beat()
    said = []
    began = clock.now

    assert take(store, clock, said) == 2
    assert clock.now - began >= ALIVE_S
    assert len(said) == 1
    assert "elsewhere; waiting for up to 20 s" in said[0]


@pytest.mark.parametrize("has_spoken", [True, False])
def test_one_elsewhere_that_died_while_it_started_is_succeeded(store, clock, has_spoken):
    """Whoever is started again and again listens from the beginning each time."""
    if has_spoken:
        Remote(store).beat("starting")
    else:
        forget_where_it_started(store)
    said = []

    assert take(store, clock, said) == 2
    assert "waiting for up to 125 s" in said[0]


@pytest.mark.parametrize("begin", [snapshots.serve, snapshots.start])
def test_a_copy_is_begun_at_last_where_a_driver_died_while_it_started(store, clock, begin):
    """By a task that waited for it in another process, which has heard of it what it needs."""
    Remote(store).beat("starting")
    job = LaunchSpec("orders", 0, snapshots.SCRIPT, "unused")

    assert begin(store, job, Elsewhere(), "me") is None
    assert begin(store, job, Elsewhere(), "me", force=True).generation == 2


def test_a_copy_leaves_a_driver_alone_that_starts_at_last(store, clock, monkeypatch):
    remote = Remote(store)
    remote.beat("starting")
    job = LaunchSpec("orders", 0, snapshots.SCRIPT, "unused")

    def sleep(seconds):
        clock.wait(seconds)
        if clock.now > 1100:
            remote.beat("running")

    monkeypatch.setattr(status_module.time, "sleep", sleep)
    assert snapshots.serve(store, job, Elsewhere(), "me", force=True) is None


def test_one_elsewhere_that_goes_on_is_left_alone(store, clock):
    said = []
    with Remote(store, HOUR_S) as remote:

        def rest(seconds):
            heard = remote.beats
            wait_until(lambda: remote.beats > heard)
            clock.wait(seconds)

        with pytest.raises(RetryableError, match=r"already runs .* on another machine"):
            starting.take_generation(
                store, "orders", "me", backend=Elsewhere(), tell=said.append, rest=rest
            )
    assert Control(store, "orders").read().generation == 1


def test_one_elsewhere_that_says_that_it_ended_is_succeeded_at_once(store, clock):
    remote = Remote(store)
    remote.beat()
    remote.beat("failed")

    assert take(store, clock, []) == 2
    assert clock.now == 1000.0


def forget_where_it_started(store):
    """Let the driver that was started be one of another machine, of which nothing was heard."""
    Control(store, "orders").update(
        lambda old: old.model_copy(
            update={"handle": {**old.handle, "boot": "another", "submitted_at_ms": 1}}
        )
    )


def test_a_start_elsewhere_is_waited_for_by_our_clock(store, clock):
    forget_where_it_started(store)
    assert status(store, "orders").status == "starting"
    clock.wait(121)
    assert status(store, "orders").status == "lost"


def test_a_driver_here_is_refused_at_once(store, clock):
    class Here(Elsewhere):
        def status(self, handle):
            return JobStatus(JobState.RUNNING)

    with Remote(store), pytest.raises(SpecError, match="stop it first, or wait"):
        starting.take_generation(store, "orders", "me", backend=Here(), rest=clock.wait)


def test_words_from_before_a_start_are_not_the_new_drivers_whatever_its_clock_says(store):
    remote = Remote(store, HOUR_S)
    remote.beat("failed")
    job = LaunchSpec("orders", 1, "stream_job.py", "unused")
    starting._submit(Control(store, "orders"), job, Elsewhere())

    assert status(store, "orders").status == "starting"
    with Remote(store, -HOUR_S):
        assert status(store, "orders").status == "running"
