"""Who lacks a batch, of sinks that hold more than the place where the lane reads."""

from airflow_provider_deltaforge.engine.catch_up.skip_list import SkipList
from airflow_provider_deltaforge.sources.scripted import ScriptedSource

SOURCE = ScriptedSource()


def test_a_sink_gets_every_part_of_what_follows_its_joining():
    ahead = SkipList(SOURCE, ["main", "side"], cut=["side"])
    ahead.leave("side")
    assert ahead.behind({"tx": 5}) == ["main"]
    ahead.join("side", {"tx": 5}, {"tx": 5})
    assert ahead.behind(None) == ["main", "side"]
    assert ahead.behind({"tx": 6}) == ["main", "side"]


def test_a_sink_is_given_no_part_of_what_it_held_at_the_start():
    known = {"main": {"tx": 3}, "side": {"tx": 5}}
    ahead = SkipList(SOURCE, ["main", "side"], known, {"tx": 3}, cut=["main", "side"])
    assert ahead.places == [{"tx": 5}]
    assert (ahead.behind(None), ahead.holders(None)) == (["main"], ["side"])
    ahead.passed({"tx": 5})
    assert (ahead.behind(None), ahead.holders(None)) == (["main", "side"], [])


def test_a_sink_that_joins_further_on_holds_whole_batches_only():
    ahead = SkipList(SOURCE, ["main", "side"], cut=["main", "side"])
    ahead.leave("side")
    ahead.join("side", {"tx": 5}, {"tx": 3})
    assert ahead.places == []
    assert ahead.behind({"tx": 4}) == ["main"]
    assert ahead.behind({"tx": 6}) == ahead.behind(None) == ["main", "side"]
    assert ahead.is_ahead("side")
    ahead.return_to_lane("side")
    assert ahead.behind({"tx": 4}) == ["main", "side"]
