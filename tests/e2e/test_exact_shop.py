"""Every change of a MySQL shop once in Kafka, Redis and NATS, killed at every border in turn.

``./dev.sh prove exactly_once`` does the same many times.
"""

import pytest

from airflow_provider_deltaforge.engine.borders import Border
from tests.e2e.exact_shop import OF_BATCHES, VICTIMS, planned, run_chain
from tests.engine.exact_run import PLACES
from tests.engine.spark_kills import Victim

# A chain is many starts of a pipeline, one after the other, each with patience of its own.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def servers(request):
    return {kind: request.getfixturevalue(f"{kind}_server") for kind in ["mysql", *PLACES]}


@pytest.mark.parametrize("seed", range(3))
def test_kills_at_every_border_lose_and_repeat_nothing(seed, servers, tmp_path):
    assert run_chain("plain", seed, tmp_path / "run", servers).wrong == []


@pytest.mark.spark
def test_on_spark_they_lose_and_repeat_nothing_either(servers, tmp_path):
    # A worker's death costs no start of a JVM.
    victims = [Victim.JVM, *[Victim.WORKER] * 5]
    assert run_chain("spark", 0, tmp_path / "run", servers, victims=victims).wrong == []


@pytest.mark.long
def test_the_same_kills_repeat_something_where_it_is_not_promised(servers, tmp_path):
    chain = run_chain("plain", 0, tmp_path / "run", servers, exactly_once=False)
    assert {told.partition(":")[0] for told in chain.wrong} >= {"kafka", "redis"}
    assert [told for told in chain.wrong if "arrived more than once" not in told] == []


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))]
)
def test_kills_while_a_sink_is_away_or_caught_up_repeat_nothing_either(seed, servers, tmp_path):
    assert run_chain("behind", seed, tmp_path / "run", servers).wrong == []


@pytest.mark.parametrize("place", ["plain", "spark"])
def test_a_chain_has_every_border_and_every_victim(place):
    for seed in range(10):
        kills = planned(place, seed)
        assert {kill.border for kill in kills} == {
            Border.START_POSITION_STORED,
            Border.SCHEMA_REGISTERED,
            *OF_BATCHES,
        }
        assert {kill.victim for kill in kills} == set(VICTIMS[place])
