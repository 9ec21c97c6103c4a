"""Where a sink that is behind may join."""

from airflow_provider_deltaforge.engine.catch_up.rejoin_point import RejoinPoint
from airflow_provider_deltaforge.engine.read.batcher import Batcher, BatchLimits
from airflow_provider_deltaforge.sources.scripted import ScriptedSource
from tests.engine.test_batcher import batch_of


def test_a_batch_that_ends_inside_a_transaction_holds_back_who_lacks_those_in_front_of_it():
    limits = BatchLimits(max_events=5, max_bytes=10**6, max_age_s=1.0, respect_source_tx=False)
    first, second = Batcher(limits).add(batch_of(2, 2, 6), 0.0)
    assert (first.rows.num_rows, first.position, first.boundary) == (5, None, {"tx": 2})
    assert (second.position, second.boundary) == ({"tx": 3}, None)

    meeting = RejoinPoint(ScriptedSource(), {"tx": 0})
    meeting.passed(first.position, None, first.boundary)
    assert [tx for tx in range(4) if meeting.holds({"tx": tx})] == [3]
    meeting.passed(second.position, None, second.boundary)
    assert meeting.holds({"tx": 3})
