"""The processors for Python and Spark people, each in a lane from source to sink."""

import re

import pytest

from airflow_provider_deltaforge.storage.records.dead_letters import DeadLetterRecords
from tests.engine.running import RunningLane, begun, events, places, run_to_the_end

EVERY = [(tx, row) for tx in range(1, 21) for row in range(3)]


def counted(progress, processor):
    return progress.processors[processor].counts


def letters(pipeline):
    return DeadLetterRecords(pipeline.store, pipeline.name).read()


def test_a_select_filters_and_changes_what_a_sink_gets():
    query = """
        select _row, 'c' as op, json_merge_patch(after, json_object('seen', true)) as after
        from events where (after->>'row')::int < 2"""
    pipeline = begun(processors=f'{{type: sql, query: "{query}"}}')
    progress = run_to_the_end(pipeline)

    assert places(pipeline) == [place for place in EVERY if place[1] < 2]
    assert all(event["op"] == "c" and event["after"]["seen"] for event in events(pipeline))
    assert [event.get("tx_end", False) for event in events(pipeline)] == [False, True] * 20
    assert counted(progress, "sql") == {"dropped": 20}


def test_a_function_drops_makes_and_refuses_events():
    pipeline = begun(
        processors="{type: python, mode: events, "
        "function: 'tests.processors.python_samples:by_row'}",
        journal="enabled: true",
    )
    progress = run_to_the_end(pipeline)

    delivered = events(pipeline)
    assert places(pipeline) == [(tx, 2) for tx in range(1, 21) for _ in range(2)]
    assert [event.get("synthetic") for event in delivered] == [None, "python"] * 20
    assert len({event["event_id"] for event in delivered}) == 40
    assert [letter.event["after"]["row"] for letter in letters(pipeline)] == [1] * 20
    assert counted(progress, "python") == {"dropped": 20}


def test_rows_that_break_a_contract_are_set_aside():
    pipeline = begun(
        processors="{type: contract, tables: [{table: script.rows, "
        "columns: {row: {type: integer, max: 1}}, schema: {required: [id, tx]}}]}",
        journal="enabled: true",
    )
    progress = run_to_the_end(pipeline)

    assert places(pipeline) == [place for place in EVERY if place[1] < 2]
    assert [letter.event["after"]["row"] for letter in letters(pipeline)] == [2] * 20
    assert counted(progress, "contract") == {"violations:script.rows.row.max": 20}


@pytest.mark.parametrize(
    ("processor", "reason"),
    [
        ("{type: sql, query: select count(*) from events}", "processor sql: query: must return"),
        ("{type: python, function: 'nowhere.at_all:run'}", "processor python: function: no module"),
        (
            "{type: contract, on_violation: block, tables: "
            "[{table: rows, columns: {more: {nullable: false}}}]}",
            "processor contract: .* break the contract, .* column 'more': nullable",
        ),
    ],
)
def test_what_cannot_go_on_stops_the_pipeline_with_its_reason(processor, reason):
    pipeline = begun(processors=processor)

    outcome = RunningLane(pipeline).end()

    assert outcome.why == "failed"
    assert re.search(reason, outcome.reason)
    assert events(pipeline) == []
