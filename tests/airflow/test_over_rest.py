"""The main job in a real Airflow: everything asked over REST, judged by the oracle in Kafka.

When the journey is over, the same Airflow supervises streams while parts of it are killed.
``python -m tests.prove airflow_kills`` runs the whole matrix; here are the cases that tell most.
They share, while nothing fails, one stream, whose driver has no JVM.
"""

import json

import pytest

from airflow_provider_deltaforge.storage.records.snapshots import Snapshots
from tests.airflow import home_contents
from tests.airflow.rest_journey import COPY, DAYS, OLD_ORDERS, PATIENCE_S, PIPELINE, Journey, day_of
from tests.airflow.service.cases import Chain
from tests.e2e import shop
from tests.oracle.mysql_history import history, name_of, table_rows
from tests.oracle.readers import seen_in
from tests.oracle.verdict import judge
from tests.servers.airflow import METADATA
from tests.servers.airflow_rest import RestError

# The first test that needs it makes the whole journey, which a busy machine takes its time for.
pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def airflow(tmp_path_factory, mysql_server, kafka_server, postgres_server):
    """A running Airflow before anything was asked of it."""
    place = tmp_path_factory.mktemp("over_rest")
    journey = Journey(place, mysql_server, kafka_server, postgres_server)
    journey.start()
    yield journey
    processes = journey.airflow.processes()
    journey.end()
    assert len(processes) > 4
    assert journey.airflow.processes() == []


@pytest.fixture(scope="module")
def journey(airflow):
    """The whole journey, while writers change the shop."""
    rest = airflow.rest
    with shop.Writers(airflow.server, "shop", pause_s=0.2):
        airflow.run = airflow.first_run()
        airflow.start_position = Snapshots(airflow.store, "orders").current().start_position
        airflow.first_generation = airflow.status().generation
        airflow.by_hand = airflow.run_by_hand()
        rest.unpause(COPY)
        airflow.chosen = airflow.copy(
            {"tables": ["shop.items"], "where": "id BETWEEN 500 AND 549", "mode": "always"}
        )
        airflow.filled = airflow.backfill()
        airflow.scheduled = airflow.wait_for_runs("scheduled")
        rest.wait_task(PIPELINE, airflow.by_hand, "stream", ["deferred", "success"], PATIENCE_S)
        airflow.next_run()
    shop.settle()
    airflow.after_copies = airflow.running_again()
    airflow.stop()
    airflow.stopped = airflow.status()
    return airflow


def test_the_dag_processor_reads_every_example(airflow):
    airflow.rest.wait_for_dag(PIPELINE)
    airflow.rest.wait_for_dag(COPY)
    airflow.rest.wait_for_dag("embedded_shop")

    assert airflow.rest.get("/importErrors")["import_errors"] == []


@pytest.mark.parametrize("conf", [{"tables": "shop.orders"}, {"where": 1}, {"mode": "sometimes"}])
def test_a_wrong_answer_in_the_form_is_refused(airflow, conf):
    airflow.rest.wait_for_dag(PIPELINE)

    with pytest.raises(RestError, match=f": 400 .*{next(iter(conf))}"):
        airflow.rest.trigger(PIPELINE, conf)


def test_every_task_succeeds_and_the_stream_outlives_its_window(journey):
    for task_id in ("preflight", "snapshot", "stream"):
        assert journey.rest.task(PIPELINE, journey.run, task_id)["state"] == "success"
    # A copy that was asked for meanwhile may be under way when the window is over.
    told = journey.rest.xcom(PIPELINE, journey.run, "stream")["status"]
    # So may the driver's start behind it.
    assert told in {"running", "snapshotting", "starting"}


def test_a_stream_that_waits_takes_no_slot_of_a_pool_that_does_not_count_it(journey):
    assert journey.pool[False]["open_slots"] == 128
    counting = journey.pool[True]
    assert 128 - counting["open_slots"] == counting["deferred_slots"] > 0


def test_what_the_driver_logs_is_in_the_log_of_its_task(journey):
    assert "driver: " in json.dumps(journey.rest.log(PIPELINE, journey.run, "stream"))


def test_a_run_by_hand_waits_for_the_window_and_adopts_the_stream(journey):
    first = journey.rest.run(PIPELINE, journey.run)
    by_hand = journey.rest.run(PIPELINE, journey.by_hand)

    assert by_hand["start_date"] > first["end_date"]
    assert journey.rest.task(PIPELINE, journey.by_hand, "snapshot")["state"] == "success"
    assert journey.after_copies.status == "running"
    assert journey.after_copies.generation == journey.first_generation == 2


def test_the_oracle_finds_nothing_wrong(journey):
    truth = history(journey.server, "shop", journey.start_position)
    seen = seen_in((json.dumps(event) for event in journey.events), name_of)

    assert len(truth) > 1000, "the writers did nothing"
    assert judge(truth, seen, table_rows(journey.server, "shop", shop.TABLES)) == []


def test_the_first_snapshot_counts_what_it_copied(journey):
    counts = journey.rest.xcom(PIPELINE, journey.run, "snapshot")

    assert counts["finished"] is True
    assert counts["tables"].keys() == {"shop.orders", "shop.items"}
    for told in counts["tables"].values():
        assert told["rows"] >= 500
        assert told["chunks_done"] == told["chunks"] > 0


def test_a_form_copies_the_chosen_rows_of_the_chosen_table_again(journey):
    copies = journey.copies("items")
    again = {row for row, times in copies.items() if times > 1}

    assert again == {row for row in copies if 500 <= row <= 549}
    assert len(again) > 0
    told = journey.rest.xcom(COPY, journey.chosen, "snapshot")
    assert {table: one["rows"] for table, one in told["tables"].items()} == {
        "shop.items": len(again)
    }


def test_a_backfill_copies_each_interval(journey):
    again = {row for row, times in journey.copies("orders").items() if times > 1}

    assert len(journey.filled) == len(DAYS)
    assert again >= set(OLD_ORDERS)
    for day, run in zip(DAYS, journey.filled, strict=True):
        told = journey.rest.xcom(COPY, run, "snapshot")
        expected = sum(day_of(order) == day for order in OLD_ORDERS)
        assert told["tables"]["shop.orders"]["rows"] == expected


def test_the_unpaused_copy_ran_its_last_interval_on_schedule(journey):
    for run_id in journey.scheduled:
        run = journey.rest.run(COPY, run_id)
        assert run["data_interval_start"] < run["data_interval_end"]
    assert journey.scheduled


def test_the_mirror_variable_holds_the_snapshot(journey):
    mirror = json.loads(journey.rest.variable("deltaforge_orders"))

    assert mirror["snapshot"]["finished"] is True


def test_the_xcom_of_the_preflight_holds_every_finding(journey):
    findings = journey.rest.xcom(PIPELINE, journey.run, "preflight")

    assert findings
    assert {finding["verdict"] for finding in findings} <= {"ok", "warn"}


def test_a_stopped_pipeline_says_so_sinks_included(journey):
    assert journey.stopped.status == "stopped"
    assert {sink.status for sink in journey.stopped.sinks.values()} == {"stopped"}


def test_the_stream_counted_what_it_brought_to_kafka(journey):
    first = journey.rest.xcom(PIPELINE, journey.run, "snapshot")["tables"].values()

    # Its driver also served the requests; the first snapshot had a driver of its own.
    assert journey.stopped.events == len(journey.events) - sum(told["rows"] for told in first)


def test_rows_that_arrived_scheduled_a_dag_that_knows_how_many_and_up_to_where(journey):
    arrived = journey.arrived()
    of_orders = sum(event["source"]["table"] == "orders" for event in journey.events)

    assert len(arrived) > 1
    assert arrived[-1]["position"]["file"]  # The first copy has none: its stream has not begun.
    assert 0 < sum(told["rows"] for told in arrived) <= of_orders


def test_the_password_is_nowhere_a_person_or_a_log_could_show_it(journey):
    answers = []
    for dag_id, run in [(PIPELINE, journey.run), (COPY, journey.chosen)]:
        path = f"/dags/{dag_id}/dagRuns/{run}/taskInstances"
        tasks = journey.rest.get(path)["task_instances"]
        answers += [*tasks, journey.rest.get(f"/dagSources/{dag_id}")]
        for task in tasks:
            answers.append(journey.rest.log(dag_id, run, task["task_id"]))
            answers.append(journey.rest.get(f"{path}/{task['task_id']}/xcomEntries"))

    assert len(answers) > 10
    assert journey.secret not in json.dumps(answers)
    for place in (journey.home, journey.jobs, journey.jobs.parent):
        assert home_contents.files_with(place, journey.secret) == []
    assert home_contents.columns_with(journey.airflow.environment[METADATA], journey.secret) == []


@pytest.fixture(scope="module")
def chain(airflow):
    running = Chain(airflow.stage(), "plain")
    try:
        yield running
    finally:
        running.end()


@pytest.mark.parametrize(
    "case",
    [
        "task SIGKILL, before defer",
        "triggerer SIGKILL",
        "clear while deferred",
        "mark failed, on_kill=stop",
    ],
)
def test_a_stream_outlives_its_supervisors_and_obeys_its_users(case, chain):
    result = chain.run(case)

    assert result.wrong == (), result.told
    assert result.drivers == 1
