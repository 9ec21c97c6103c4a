"""Each sink of the fan-out example stopped and started in turn: what the policy says happens.

Whatever the policy, there is no hole in any sink at the end, and each row's last delivery is its
last state.
"""

import pytest

from tests.e2e.fan_out import KAFKA, NATS, REDIS, FanOut

BLOCKING = {
    "seed_example_fan_out": {KAFKA},
    "seed_fan_out_quorum": set(),
    "seed_fan_out_all": {KAFKA, REDIS, NATS},
}
"""Which sinks hold up the others while they are away."""


@pytest.fixture
def servers(kafka_server, redis_server, nats_server):
    return {KAFKA: kafka_server, REDIS: redis_server, NATS: nats_server}


@pytest.mark.parametrize(
    "stem",
    [
        "seed_example_fan_out",
        pytest.param("seed_fan_out_quorum", marks=pytest.mark.long),
        pytest.param("seed_fan_out_all", marks=pytest.mark.long),
    ],
)
def test_each_sink_is_stopped_and_started_in_turn(stem, servers, mysql_server):
    run = FanOut(stem, servers, mysql_server)
    try:
        run.change()
        run.wait_reached(servers)
        for away, server in servers.items():
            with_one_away(run, stem, away, server)
        run.stop()
        assert run.judge() == []
    finally:
        run.close()


def with_one_away(run, stem, away, server):
    others = [name for name in run.servers if name != away]
    before = run.checkpoints()
    server.stop()
    try:
        run.change()
        if away in BLOCKING[stem]:
            told = run.wait_status("blocked")
            assert told.reason.startswith(f"sink {away}: ")
            assert run.checkpoints()[away] == before[away]
        else:
            run.wait_reached(others)
            assert run.wait_sink(away, "behind").reason
            assert run.progress().status == "running"
            assert run.source.compare(run.checkpoints()[away], before[others[0]]) <= 0
    finally:
        server.start_again()
    run.wait_reached(run.servers)
    run.wait_status("running")
    run.wait_sink(away, "running")
