"""Who may start, adopt and restart a driver, with jobs that only a list of states knows."""

from dataclasses import replace

import pytest

from airflow_provider_deltaforge.control import pipelines, snapshots, starting
from airflow_provider_deltaforge.control.launching.contract import JobState, JobStatus, LaunchSpec
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.control import Control
from airflow_provider_deltaforge.storage.records.snapshots import SnapshotRecord
from tests.control.bench import DOCUMENT
from tests.control.driver import progress

STREAM = LaunchSpec("orders", 0, "stream_job.py", "unused")
SNAPSHOT = LaunchSpec("orders", 0, "snapshot_job.py", "unused")


class Place:
    """Runs nothing; says of every job what it is told to say."""

    def __init__(self):
        self.state = JobState.RUNNING
        self.submitted, self.stopped = [], []
        self.meanwhile = lambda: None

    def submit(self, job):
        self.submitted.append(job.name)
        return {"name": job.name, "host": "elsewhere", "directory": ""}

    def status(self, handle):
        del handle
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        return JobStatus(self.state)

    def stop(self, handle, grace_s):
        del grace_s
        self.stopped.append(handle["name"])


@pytest.fixture
def store(request):
    store = StoreLocation.from_dsn(f"memory://{request.node.name}").create()
    pipelines.apply(store, DOCUMENT)
    return store


@pytest.fixture
def place():
    return Place()


def speak(store, status="running", age_s=0.0, generation=None, **more):
    """Do what a driver does with every heartbeat."""
    control = Control(store, "orders")
    fence = control.take_epoch("driver")
    told = progress(status, fence.version, generation or control.read().generation, 1, **more)
    long_ago = told.model_copy(update={"beat_s": told.beat_s - age_s})
    store.transact([control.put_progress(long_ago)], fence)


def record(store):
    return Control(store, "orders").read()


def want(store, desired):
    Control(store, "orders").update(lambda old: old.model_copy(update={"desired": desired}))


def submitted_long_ago(store):
    Control(store, "orders").update(
        lambda old: old.model_copy(update={"handle": {**old.handle, "submitted_at_ms": 1}})
    )


def restarting(store):
    return replace(STREAM, generation=record(store).generation)


def test_a_driver_of_another_host_is_adopted_while_it_speaks(store, place):
    starting.start(store, STREAM, place, "first")
    speak(store)
    place.state = JobState.UNKNOWN
    second = starting.start(store, STREAM, place, "second")

    assert (second.adopted, second.generation) == (True, 1)
    assert (record(store).owner, place.submitted) == ("second", ["df-orders-g1"])


@pytest.mark.parametrize(
    "said", [{"age_s": 60}, {"status": "stopped"}], ids=["silent", "said its last word"]
)
def test_a_driver_of_another_host_that_ended_or_fell_silent_is_not_adopted(store, place, said):
    starting.start(store, STREAM, place, "first")
    speak(store, **said)
    place.state = JobState.UNKNOWN

    assert starting.start(store, STREAM, place, "second").generation == 2


def test_words_of_an_earlier_generation_do_not_show_that_a_driver_elsewhere_lives(store, place):
    starting.start(store, STREAM, place, "first")
    Control(store, "orders").update(
        lambda old: old.model_copy(
            update={"generation": 2, "handle": {**old.handle, "generation": 2}}
        )
    )
    speak(store, generation=1)
    place.state = JobState.UNKNOWN
    with pytest.raises(RetryableError, match="runs on elsewhere and has not ended"):
        starting.start(store, STREAM, place, "second", grace_s=0)

    assert record(store).generation == 3


@pytest.mark.parametrize(
    ("how", "desired"), [({}, "paused"), ({"resume": True}, "running")], ids=["task", "person"]
)
def test_a_pause_outlives_a_new_generation_until_a_person_resumes(store, place, how, desired):
    starting.start(store, STREAM, place, "first")
    pipelines.pause(store, "orders")
    place.state = JobState.ENDED
    second = starting.start(store, STREAM, place, "second", **how)

    assert (second.adopted, record(store).desired) == (False, desired)


def test_a_pause_outlives_the_start_of_a_snapshot_job(store, place):
    starting.start(store, STREAM, place, "first")
    pipelines.pause(store, "orders")
    place.state = JobState.ENDED
    snapshots.start(store, SNAPSHOT, place, "second")

    assert (record(store).generation, record(store).desired) == (2, "paused")


@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.ENDED], ids=["adopt", "claim"])
def test_a_stop_between_looking_and_starting_stands(store, place, state):
    starting.start(store, STREAM, place, "first")
    place.state, place.meanwhile = state, lambda: pipelines.ask_to_stop(store, "orders")
    with pytest.raises(RetryableError, match="stopped at this moment"):
        starting.start(store, STREAM, place, "second")

    assert (record(store).desired, record(store).owner) == ("stopped", "first")
    assert starting.start(store, STREAM, place, "second").generation == 2


def test_a_start_between_looking_and_adopting_stands(store, place):
    starting.start(store, STREAM, place, "first")

    def meanwhile():
        pipelines.stop(store, "orders", place)
        starting.start(store, STREAM, place, "another")

    place.meanwhile = meanwhile
    with pytest.raises(RetryableError, match="started meanwhile by another"):
        starting.start(store, STREAM, place, "second")
    assert record(store).owner == "another"


def own_snapshot(store, generation, finished_at_ms):
    run = SnapshotRecord(
        id=f"r{generation}",
        generation=generation,
        started_at_ms=1,
        start_position={},
        chunk_count=0,
        tables={},
        finished_at_ms=finished_at_ms,
    )
    store.put(names.SNAPSHOTS, "orders/run", run.model_dump_json().encode())


def test_a_snapshot_job_that_is_done_and_serves_a_request_gives_way_to_the_stream(store, place):
    starting.start(store, SNAPSHOT, place, "first")
    own_snapshot(store, 1, None)
    with pytest.raises(RetryableError, match=r"busy with snapshot_job\.py"):
        starting.start(store, STREAM, place, "second")
    own_snapshot(store, 1, pipelines.now_ms())

    assert starting.start(store, STREAM, place, "second").generation == 2
    assert place.stopped == ["df-orders-g1"]


def test_a_snapshot_of_long_ago_does_not_make_a_new_one_give_way(store, place):
    own_snapshot(store, 0, 5)
    starting.start(store, SNAPSHOT, place, "first")

    with pytest.raises(RetryableError, match=r"busy with snapshot_job\.py"):
        starting.start(store, STREAM, place, "second")


def test_only_the_owner_restarts(store, place):
    starting.start(store, STREAM, place, "first")
    speak(store, age_s=60)
    starting.start(store, STREAM, place, "second")
    for again in (
        lambda: starting.restart(store, restarting(store), place, "first"),
        lambda: starting.count_restart(store, "orders", 1, "first"),
    ):
        with pytest.raises(RetryableError, match="taken over by second"):
            again()

    assert (record(store).restarts, place.stopped) == ([], [])


def test_a_driver_that_speaks_again_is_not_restarted(store, place):
    started = starting.start(store, STREAM, place, "first")
    speak(store, generation=1)

    assert starting.restart(store, restarting(store), place, "first") == started.handle
    assert (record(store).restarts, place.stopped) == ([], [])


def test_a_driver_that_hangs_is_ended_and_started_again(store, place):
    starting.start(store, STREAM, place, "first")
    submitted_long_ago(store)
    speak(store, age_s=60)
    starting.restart(store, restarting(store), place, "first")

    assert len(record(store).restarts) == 1
    assert (place.stopped, place.submitted) == (["df-orders-g1"], ["df-orders-g1"] * 2)


BEGIN = pytest.mark.parametrize("begin", [snapshots.serve, snapshots.start])


@BEGIN
@pytest.mark.parametrize(
    "said",
    [{"age_s": 60}, {"status": "failed", "error_class": "retryable"}],
    ids=["silent", "failed, a restart may help"],
)
def test_a_dead_stream_is_left_to_its_supervisor_until_patience_is_over(store, place, begin, said):
    starting.start(store, STREAM, place, "the stream's task")
    submitted_long_ago(store)
    speak(store, **said)
    place.state = JobState.ENDED

    assert begin(store, SNAPSHOT, place, "me") is None
    assert record(store).owner == "the stream's task"
    assert begin(store, SNAPSHOT, place, "me", force=True).generation == 2


@BEGIN
@pytest.mark.parametrize(
    ("said", "desired"),
    [
        ({"status": "failed", "error_class": "access"}, "running"),
        ({"age_s": 60}, "stopped"),
        ({"status": "stopped"}, "running"),
    ],
    ids=["failed for good", "nobody wants it", "stopped"],
)
def test_a_stream_that_nobody_will_start_again_makes_way_at_once(
    store, place, begin, said, desired
):
    starting.start(store, STREAM, place, "the stream's task")
    submitted_long_ago(store)
    speak(store, **said)
    want(store, desired)
    place.state = JobState.ENDED

    assert begin(store, SNAPSHOT, place, "me").generation == 2


@BEGIN
def test_a_dead_snapshot_job_is_started_again_at_once(store, place, begin):
    begin(store, SNAPSHOT, place, "first")
    submitted_long_ago(store)
    speak(store, age_s=60)
    place.state = JobState.ENDED

    assert begin(store, SNAPSHOT, place, "second").generation == 2


def test_a_restart_that_no_place_takes_is_not_counted(store, place):
    """The budget is for drivers that were started, and died."""
    starting.start(store, STREAM, place, "me")
    place.state = JobState.ENDED
    job = replace(STREAM, generation=record(store).generation)
    real = place.submit

    def away(_job):
        raise RetryableError("the cluster does not answer")

    place.submit = away
    for _ in range(8):
        with pytest.raises(RetryableError, match="does not answer"):
            starting.restart(store, job, place, "me")
    assert (record(store).restarts, record(store).restarts_total) == ([], 0)
    place.submit = real
    assert starting.restart(store, job, place, "me")
    assert (len(record(store).restarts), record(store).restarts_total) == (1, 1)
