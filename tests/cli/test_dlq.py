"""What the command line says of events that were set aside."""

import json
import os
import subprocess
import sys

import orjson
import pytest
from typer.testing import CliRunner

from airflow_provider_deltaforge.cli.app import app
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.storage.records.dead_letters import DeadLetterRecords

SQL = "CREATE TABLE r (id INT) CONNECTION='mysql://u:planted-password@h/d/r'"


def letter(number, **meta):
    who = {"sink_id": None, "processor_id": None, "error_kind": "processor"}
    event = {
        "before": None,
        "after": {"id": number, "name": "Zoë"},
        "source": {"db": "shop", "table": "orders"},
        "op": "c",
        **({"ddl": {"sql": SQL}} if number == 3 else {}),
    }
    return {
        "v": 1,
        "timestamp": 1_700_000_000 + number,
        "pipeline": "orders",
        "stream": "dlq",
        "event_id": f"id-{number}",
        "source_cursor": {"pos": number},
        "event": event,
        "payload_truncated": False,
        "meta": {**who, "error_message": f"because {number}", "attempts": 1, **meta},
    }


@pytest.fixture
def filled(pipeline):
    queue = DeadLetterRecords(pipeline, "orders")
    told = [
        letter(1, sink_id="out", error_kind="routing"),
        letter(2, processor_id="js"),
        letter(3, sink_id="out", error_kind="message_too_large"),
        letter(4, processor_id="mask"),
    ]
    pipeline.transact([queue.push(orjson.dumps(one)) for one in told])
    return [one.seq for one in queue.read()]


def deltaforge(*words):
    return CliRunner().invoke(app, ["dlq", *map(str, words)], catch_exceptions=True)


def rows(*words):
    return [line.split()[0] for line in deltaforge(*words).stdout.splitlines()[1:]]


def test_an_empty_queue_says_so(pipeline):
    assert deltaforge("count", "orders").stdout == "0\n"
    assert "Nothing is set aside" in deltaforge("list", "orders").stdout
    assert isinstance(deltaforge("peek", "orders").exception, SpecError)
    assert status(pipeline, "orders").as_dict()["dlq"] == {}


def test_a_filter_that_nothing_can_fit_is_refused_and_a_table_may_be_named_alone(filled):
    assert deltaforge("count", "orders", "--table", "orders").stdout == "4\n"
    assert deltaforge("count", "orders", "--sink", "out").stdout == "2\n"
    for words in (("--sink", "cahce"), ("--processor", "jss")):
        for command in ("count", "list", "replay"):
            refused = deltaforge(command, "orders", *words).exception
            assert isinstance(refused, SpecError)
            assert repr(words[1]) in str(refused)


def test_a_list_shows_who_refused_what_and_why_without_the_row(filled):
    text = deltaforge("list", "orders").stdout
    assert "shop.orders" in text
    assert all(word in text for word in ("sink out", "processor js", "because 1"))
    assert "Zoë" not in text
    told = json.loads(deltaforge("list", "orders", "--json").stdout)
    assert [one["seq"] for one in told] == filled
    assert set(told[0]) == {
        *("seq", "timestamp", "pipeline", "stream", "event_id", "source_cursor"),
        *("payload_truncated", "meta"),
    }


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ((), [0, 1, 2, 3]),
        (("--sink", "out"), [0, 2]),
        (("--processor", "mask"), [3]),
        (("--kind", "processor"), [1, 3]),
        (("--sink", "out", "--kind", "routing"), [0]),
        (("--sink", "files"), []),
        (("--table", "shop.orders"), [0, 1, 2, 3]),
        (("--table", "shop.other"), []),
    ],
)
def test_filters_choose(filled, options, found):
    told = json.loads(deltaforge("list", "orders", "--json", *options).stdout)
    assert [one["seq"] for one in told] == [filled[at] for at in found]
    assert deltaforge("count", "orders", *options).stdout == f"{len(found)}\n"


def test_the_limit_counts_what_fits_and_pages_go_on(filled):
    assert rows("list", "orders", "--kind", "processor", "--limit", "1") == [str(filled[1])]
    assert rows("list", "orders", "--kind", "processor", "--after", filled[1]) == [str(filled[3])]


def test_one_entry_is_shown_with_its_row(filled):
    told = json.loads(deltaforge("peek", "orders").stdout)
    expected = letter(1, sink_id="out", error_kind="routing")
    assert told == {**{key: expected[key] for key in expected if key != "v"}, "seq": filled[0]}
    assert json.loads(deltaforge("peek", "orders", filled[1]).stdout)["event_id"] == "id-2"
    assert "has no dead letter" in str(deltaforge("peek", "orders", 10**6).exception)


def test_the_oldest_that_fits_is_shown(filled):
    assert (
        json.loads(deltaforge("peek", "orders", "--processor", "mask").stdout)["seq"] == filled[3]
    )
    assert "that fits is set aside" in str(deltaforge("peek", "orders", "--kind", "x").exception)
    assert "not both" in str(deltaforge("peek", "orders", filled[0], "--sink", "out").exception)


def test_a_password_in_a_statement_is_not_shown(filled):
    shown = deltaforge("peek", "orders", filled[2]).stdout
    assert "CONNECTION" in shown
    assert "planted-password" not in shown


def test_ack_forgets_up_to_and_including(filled):
    assert deltaforge("ack", "orders", filled[1], "--json").stdout == '{"acked": 2}\n'
    assert rows("list", "orders") == [str(filled[2]), str(filled[3])]


def test_purge_asks_for_the_name_and_forgets_everything(filled, pipeline):
    assert "confirm" in str(deltaforge("purge", "orders", "--confirm", "other").exception)
    assert status(pipeline, "orders").dlq.entries == 4
    assert deltaforge("purge", "orders", "--confirm", "orders").stdout == "4 entries forgotten\n"
    assert deltaforge("count", "orders", "--json").stdout == '{"count": 0}\n'


@pytest.mark.parametrize("words", [("count",), ("list",), ("peek",), ("ack", "1")])
def test_a_pipeline_that_is_not_there_is_named(pipeline, words):
    error = deltaforge(words[0], "gone", *words[1:]).exception
    assert "there is no pipeline 'gone'" in str(error)


def test_a_reason_is_shown_as_it_is(pipeline):
    """Brackets in it are no style, and must not make the list fail."""
    told = {**letter(1, processor_id="p"), "seq": 0}
    told["meta"]["error_message"] = "KeyError: [red] is not [/known]"
    pipeline.transact([DeadLetterRecords(pipeline, "orders").push(orjson.dumps(told))])
    assert "KeyError: [red] is not [/known]" in deltaforge("list", "orders").stdout


def test_grep_sees_each_entry_in_one_line(pipeline):
    reason = "TypeError: the price is no number\n    at " + "processBatch " * 20
    queue = DeadLetterRecords(pipeline, "orders")
    pipeline.transact(
        [
            queue.push(orjson.dumps(letter(number, processor_id="p", error_message=reason)))
            for number in range(2)
        ]
    )
    command = [sys.executable, "-m", "airflow_provider_deltaforge.cli.app", "dlq", "list", "orders"]
    printed = subprocess.run(
        command,
        env={key: value for key, value in os.environ.items() if key != "COLUMNS"},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    ).stdout
    head, *rows = printed.splitlines()
    assert head.split() == [
        "seq",
        "at",
        "table",
        "op",
        "refused",
        "by",
        "kind",
        "why",
        "newer",
        "in",
    ]
    assert len(rows) == 2
    assert all(" ".join(reason.split()) in " ".join(row.split()) for row in rows)
    assert all(line == line.rstrip() for line in [head, *rows])
