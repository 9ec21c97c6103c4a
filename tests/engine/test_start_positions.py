"""Where a lane begins to read, by where its sinks stand."""

from types import SimpleNamespace

import pytest

from airflow_provider_deltaforge.engine.base.required_sinks import RequiredSinks
from airflow_provider_deltaforge.engine.catch_up.lagging_sinks import LaggingSinks
from airflow_provider_deltaforge.engine.catch_up.skip_list import SkipList
from airflow_provider_deltaforge.engine.lane.delivery import Delivery
from airflow_provider_deltaforge.sources.scripted import ScriptedSource
from airflow_provider_deltaforge.sources.turso.positions import FilePosition
from airflow_provider_deltaforge.sources.turso.source import TursoSource

ANY, BOTH = RequiredSinks(frozenset(), 1), RequiredSinks(frozenset({"one", "two"}), 2)


def polled(**tables):
    return FilePosition("polling", tables=tables).as_json()


@pytest.mark.parametrize(("policy", "start"), [(ANY, 7), (BOTH, 3)], ids=["any", "both"])
def test_it_is_the_furthest_place_that_enough_sinks_have_reached(policy, start):
    stands = {"one": {"tx": 3}, "two": {"tx": 7}}
    assert policy.start(ScriptedSource(), stands) == {"tx": start}


@pytest.mark.parametrize("policy", [ANY, BOTH], ids=["any", "both"])
def test_sinks_that_are_each_ahead_in_a_table_of_their_own_lack_nothing_from_there_on(policy):
    source = TursoSource.model_construct(id="polled")
    stands = {"one": polled(a=7, b=3), "two": polled(a=5, b=6)}
    start = policy.start(source, stands)
    if policy is BOTH:
        assert start == polled(a=5, b=3)
    else:
        assert start in stands.values()


def test_a_sink_that_is_behind_no_more_counts_although_it_has_not_joined():
    delivering = object.__new__(Delivery)
    delivering._policy = RequiredSinks(frozenset(), 2)
    delivering._skip_list = SkipList(ScriptedSource(), ["one", "two", "three"])
    delivering._skip_list.leave("three")
    lagging = delivering._lagging = object.__new__(LaggingSinks)
    lagging._source = ScriptedSource()
    lagging._behind = {"three": SimpleNamespace(at={"tx": 7})}

    assert delivering._is_enough(["one"], {"tx": 7})
    assert not delivering._is_enough(["one"], {"tx": 8})
    assert not delivering._is_enough(["one"], None)
