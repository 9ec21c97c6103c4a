import pytest
from rich.console import Console

from airflow_provider_deltaforge.cli.views import copy_table, pipeline_details, pipelines_table
from airflow_provider_deltaforge.control.status import PipelineStatus
from airflow_provider_deltaforge.storage.records.stats import SinkProgress

ORDERS = PipelineStatus(
    name="orders-of-the-whole-shop",
    status="snapshotting",
    desired="running",
    generation=12,
    reason="sink shop-kafka: Connect to 127.0.0.1:9092 failed: Connection refused " * 2,
    heartbeat_age_s=0.312,
    lag_ms=12345,
    events=123456789,
    position={"file": "binlog.000012", "pos": 4},
    sinks={"shop-kafka": {"status": "blocked", "events": 7, "bytes": 12345678901, "retries": 3}},
    tables={"shop.customers": {"events": {"c": 12345, "r": 100}}},
    processors={
        "shop-outbox": {
            "events_in": 1234567,
            "events_out": 1234000,
            "errors": 2,
            "counts": {"dropped:non_insert": 567},
            "latency": {"buckets_s": [1.0], "counts": [400, 0], "sum_s": 1.6},
        }
    },
    dlq={"entries": 9000, "max_entries": 10000, "evicted": 4},
    handle={"name": "df-orders-g12", "directory": "/var/lib/deltaforge/jobs/df-orders-g12"},
)


def test_a_driver_on_a_cluster_is_shown_by_its_submission():
    handle = {"name": "df-orders-g1", "submission_id": "driver-7", "master": "spark://m:7077"}
    shown = lines(pipeline_details(ORDERS.model_copy(update={"handle": handle})))
    assert shown[-2:] == ["driver    df-orders-g1", "spark     driver-7 on spark://m:7077"]


def lines(view):
    console = Console(width=80)
    with console.capture() as captured:
        console.print(view)
    return captured.get().splitlines()


def test_a_pipeline_is_one_line_of_80_columns_and_its_reason_below():
    shown = lines(pipelines_table([ORDERS]))

    assert max(map(len, shown)) <= 80
    assert shown[0].split() == ["pipeline", "status", "wanted", "gen", "events", "lag", "heartbeat"]
    assert shown[1].split()[1:] == [
        "snapshotting",
        "running",
        "12",
        "123,456,789",
        "12.3",
        "s",
        "312",
        "ms",
        "ago",
    ]
    assert "Connection refused" in " ".join(shown)
    assert not any("…" in line for line in shown)


@pytest.mark.parametrize(
    "words",
    [
        *["shop-kafka", "12.3 GB", "shop.customers", "c 12,345", "df-orders-g12/driver.log"],
        *["shop-outbox  1,234,567  1,234,000  2       4 ms     dropped:non_insert 567"],
        "9,000 of 10,000 entries, 4 lost; deltaforge dlq list",
    ],
)
def test_the_details_show_everything_without_cutting(words):
    shown = lines(pipeline_details(ORDERS))

    assert any(words in line for line in shown), "\n".join(shown)
    assert not any("…" in line for line in shown)


def test_how_long_a_sink_lacks_changes_is_shown_under_the_word_lag():
    late = {"cache": SinkProgress(status="behind", lag_ms=66_900)}

    shown = lines(pipeline_details(ORDERS.model_copy(update={"sinks": late})))

    at = next(number for number, line in enumerate(shown) if line.startswith("sink "))
    assert shown[at].split()[:4] == ["sink", "status", "lag", "events"]
    assert shown[at + 1].split()[:4] == ["cache", "behind", "66.9", "s"]


def test_a_copy_shows_rows_bytes_and_time_left_of_each_table_and_what_limits_it():
    orders = {"chunks": 40, "chunks_done": 10, "rows": 100_000, "rows_estimate": 400_000}
    items = {"chunks": 2, "chunks_done": 2, "rows": 9, "rows_estimate": 12_000}
    progress = {
        "chunks": 42,
        "chunks_done": 12,
        "rows": 100_009,
        "bytes": 12_300_900,
        "rows_per_s": 2500,
        "eta_s": 120,
        "limits": {"max_rows_per_s": 3000},
        "tables": {
            "shop.orders": {**orders, "bytes": 12_300_000, "eta_s": 120},
            "shop.items": {**items, "bytes": 900, "eta_s": 0},
        },
    }
    shown = lines(copy_table(progress))
    assert [line.split() for line in shown if "shop" in line] == [
        ["shop.orders", "10/40", "100,000", "of", "~400,000", "12.3", "MB", "2", "min"],
        ["shop.items", "2/2", "9", "900", "B", "0", "ms"],
    ]
    assert shown[-1] == "2,500 rows/s, limited by max_rows_per_s 3,000"
    assert max(map(len, shown)) <= 80
