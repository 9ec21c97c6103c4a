"""Copies asked for while MySQL streams to Kafka under load, judged by the oracle."""

from airflow_provider_deltaforge.control import snapshots
from airflow_provider_deltaforge.control.snapshots import CopySelection
from tests.e2e import shop
from tests.e2e.pipeline_run import run_in


def test_rows_are_copied_again_beside_the_stream(tmp_path, mysql_server, kafka_server):
    run = run_in(tmp_path, mysql_server, kafka_server, "asked")

    def ask(request_id, *told):
        snapshots.request(run.store, run.name, CopySelection(*told), request_id, "a test")

    def ended(request_id):
        run.wait(lambda: snapshots.request_state(run.store, run.name, request_id).settled)
        return snapshots.request_state(run.store, run.name, request_id)

    with shop.Writers(mysql_server, run.name):
        driver = run.start()
        run.wait_status("running")
        run.wait_events(200)
        ask("wrong", ("asked.orders",), "colour = 1")
        ask("slice", ("asked.orders",), "id BETWEEN 101 AND 350")
        ask("items", ("asked.items",))
        wrong, part, items = ended("wrong"), ended("slice"), ended("items")
        run.wait_status("running")
        run.wait_events(500)
    shop.settle()
    run.wait_caught_up()
    assert run.stop(driver) == 0

    assert (wrong.state, wrong.error_class) == ("failed", "spec")
    assert wrong.reason.startswith("where: ")
    assert "colour" in wrong.reason
    assert (part.state, dict(part.copied)["asked.orders"]["rows"]) == ("done", 250)
    assert part.copied.keys() == {"asked.orders"}
    assert (items.state, items.copied.keys()) == ("done", {"asked.items"})
    assert items.rows > 600
    assert run.judge(1000) == []
    # The first snapshot and then the slice: some rows were read twice, those outside it once.
    read = [event.key[1] for event in run.seen() if event.name is None and "orders" in event.key[0]]
    assert all(read.count(order) == (2 if 101 <= order <= 350 else 1) for order in range(1, 601, 7))
