"""A driver that is frozen while it writes, and wakes up behind its successor, changes nothing.

The destination falls silent, the driver is frozen with a write on its way, the destination comes
back, another driver takes over and delivers newer states of the same rows, and the first one wakes
up with the rest of its batch or chunk in its hands.
"""

import pytest

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from tests.engine.exact_run import new_place
from tests.engine.zombies import SilentEndpoint, ZombieRun, has_unread, with_settings

SMALL_REQUESTS = {
    False: "client_conf: {batch.size: 20000, message.timeout.ms: 3000}",
    True: "client_conf: {batch.size: 20000}",
}
"""So that most of a batch is still in the producer when the driver is frozen."""
STREAM, CHUNK = (CrashPoint.SINK_WRITTEN, 1), (CrashPoint.CHUNK_RENDERED, 2)


def outlived(run, server, crash_point, is_under_way):
    """Run the whole story; return what the sink holds and what it must hold."""
    if run.snapshot == "never":
        run.begin_at(0)
    old = run.frozen_with_a_write_under_way(server, *crash_point, is_under_way)
    new = run.start()
    run.wait_delivered(new)
    run.wake(old)
    assert run.stop(new) == 0
    return run.last_states(), run.rows({"tx": 0})


CASES = [
    pytest.param("redis", False, STREAM, id="redis-stream"),
    pytest.param("redis", True, CHUNK, id="redis-exact-chunk"),
    pytest.param("redis", False, CHUNK, id="redis-chunk", marks=pytest.mark.long),
    pytest.param("redis", True, STREAM, id="redis-exact-stream", marks=pytest.mark.long),
    pytest.param("kafka", False, STREAM, id="kafka-stream"),
    pytest.param("kafka", True, CHUNK, id="kafka-exact-chunk"),
    pytest.param("kafka", False, CHUNK, id="kafka-chunk", marks=pytest.mark.long),
    pytest.param("kafka", True, STREAM, id="kafka-exact-stream", marks=pytest.mark.long),
    pytest.param("nats", True, CHUNK, id="nats-exact-chunk"),
    pytest.param("nats", False, CHUNK, id="nats-chunk", marks=pytest.mark.long),
    pytest.param("nats", False, STREAM, id="nats-stream", marks=pytest.mark.long),
    pytest.param("nats", True, STREAM, id="nats-exact-stream", marks=pytest.mark.long),
]


@pytest.mark.parametrize(("kind", "is_exact", "crash_point"), CASES)
def test_what_a_frozen_driver_has_begun_never_lands_behind_newer_rows(
    kind, is_exact, crash_point, request, tmp_path
):
    server = request.getfixturevalue(f"{kind}_server")
    place = new_place(kind, server.dsn(), exactly_once=is_exact)
    if kind == "kafka":
        place = with_settings(place, SMALL_REQUESTS[is_exact])
    snapshot = "initial" if crash_point is CHUNK else "never"
    run = ZombieRun(tmp_path, place=place, snapshot=snapshot)

    held, wanted = outlived(run, server, crash_point, lambda: has_unread(server.port))

    assert held == wanted


@pytest.mark.long
def test_transactions_fence_plain_delivery_into_kafka(kafka_server, tmp_path):
    place = new_place("kafka", kafka_server.dsn(), exactly_once=False)
    run = ZombieRun(tmp_path, place=with_settings(place, "fencing: transactions"))

    held, wanted = outlived(run, kafka_server, STREAM, lambda: has_unread(kafka_server.port))

    assert held == wanted


@pytest.mark.parametrize(
    "crash_point", [STREAM, pytest.param(CHUNK, marks=pytest.mark.long)], ids=["stream", "chunk"]
)
def test_an_endpoint_gets_nothing_old_behind_what_is_newer(crash_point, tmp_path):
    endpoint = SilentEndpoint()
    snapshot = "initial" if crash_point is CHUNK else "never"
    run = ZombieRun(tmp_path, place=endpoint.place(), snapshot=snapshot, keys=60, rate=20)

    held, wanted = outlived(run, endpoint, crash_point, endpoint.is_waited_for)

    assert held == wanted
