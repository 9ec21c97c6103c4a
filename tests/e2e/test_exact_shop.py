"""Every change of a shop once in Kafka, Redis and NATS, killed at every crash point in turn.

``./dev.sh prove exactly_once`` does the same many times over every source.
"""

import pytest

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from tests.e2e.exact_kills import OF_BATCHES, VICTIMS, planned
from tests.e2e.exact_shop import run_chain
from tests.e2e.exact_sources import SERVERLESS, SHOPS
from tests.engine.exact_run import PLACES
from tests.engine.spark_kills import Victim

# A chain is many starts of a pipeline, one after the other, each with patience of its own.
pytestmark = pytest.mark.timeout(900)


def chains(*always):
    """Return the source and the seed of some chains; the proof has all others."""
    return pytest.mark.parametrize(("source", "seed"), always)


@pytest.fixture
def source():
    return "mysql"


@pytest.fixture
def servers(request, source):
    kinds = [*PLACES, *([] if source in SERVERLESS else [source])]
    return {kind: request.getfixturevalue(f"{kind}_server") for kind in kinds}


@chains(("mysql", 0), ("mariadb", 1), ("postgres", 2), ("turso", 0))
def test_kills_at_every_crash_point_lose_and_repeat_nothing(source, seed, servers, tmp_path):
    assert run_chain("plain", seed, tmp_path / "run", servers, source=source).wrong == []


@pytest.mark.spark
def test_on_spark_they_lose_and_repeat_nothing_either(servers, tmp_path):
    # A worker's death costs no start of a JVM.
    victims = [Victim.JVM, *[Victim.WORKER] * 5]
    assert run_chain("spark", 0, tmp_path / "run", servers, victims=victims).wrong == []


@pytest.mark.long
@pytest.mark.parametrize("source", SHOPS)
def test_the_same_kills_repeat_something_where_it_is_not_promised(source, servers, tmp_path):
    chain = run_chain("plain", 0, tmp_path / "run", servers, source=source, exactly_once=False)
    assert {told.partition(":")[0] for told in chain.wrong} >= {"kafka", "redis"}
    assert [told for told in chain.wrong if "arrived more than once" not in told] == []


@chains(("mysql", 0))
def test_kills_while_a_sink_is_away_or_caught_up_repeat_nothing_either(
    source, seed, servers, tmp_path
):
    assert run_chain("behind", seed, tmp_path / "run", servers, source=source).wrong == []


@pytest.mark.parametrize("place", ["plain", "spark"])
def test_a_chain_has_every_crash_point_and_every_victim(place):
    for seed in range(10):
        kills = planned(place, seed)
        assert {kill.crash_point for kill in kills} == {
            CrashPoint.START_POSITION_STORED,
            CrashPoint.SCHEMA_REGISTERED,
            *OF_BATCHES,
        }
        assert {kill.victim for kill in kills} == set(VICTIMS[place])
