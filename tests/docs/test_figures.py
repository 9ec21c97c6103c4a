"""Figures on the pages are those of the measurements that they name."""

import json
import re
from functools import reduce

import pytest

from tests.docs.pages import CHECKOUT

_ALONE = "processor_alone_events_per_s"
_MILLION = 1e6
_FIGURES = [
    ("deployment.md", "234,000 rows/s", "drain-mysql-inserts", ["whole", "rows_per_s"]),
    ("deployment.md", "6.3 CPU seconds", "drain-mysql-inserts", ["whole", "cpu_s_per_million"]),
    ("deployment.md", "246,000 rows/s", "drain-postgres-inserts", ["whole", "rows_per_s"]),
    ("deployment.md", "6.9 CPU seconds", "drain-postgres-inserts", ["whole", "cpu_s_per_million"]),
    ("deployment.md", "2 ms in the median", "rates-mysql-inserts-local", ["rates", 2, "p50_ms"]),
    ("deployment.md", "8 ms at the 99th", "rates-mysql-inserts-local", ["rates", 2, "p99_ms"]),
    ("deployment.md", "JVM 342 MiB", "idle", ["streaming_mib", "driver: JVM"]),
    ("deployment.md", "Python workers 426", "idle", ["streaming_mib", "driver: Python workers"]),
    (
        "deployment.md",
        "Python workers 363",
        "drain-mysql-inserts",
        ["whole", "processes", "driver: Python workers", "rss_mib_peak"],
    ),
    ("deployment.md", "454 MiB", "transaction-mysql-local", ["whole", "lane_rss_mib_peak"]),
    ("deployment.md", "5,400 rows/s", "behind", ["caught up", "side_events_per_s"]),
    ("snapshots.md", "822,000 (", "snapshot", ["postgres", "rows_per_s", "read"]),
    ("snapshots.md", "481,000 (", "snapshot", ["postgres", "rows_per_s", "whole"]),
    ("snapshots.md", "672,000 (", "snapshot", ["mysql", "rows_per_s", "read"]),
    ("snapshots.md", "496,000 (", "snapshot", ["mysql", "rows_per_s", "whole"]),
    ("snapshots.md", "748,000 (", "snapshot", ["mariadb", "rows_per_s", "read"]),
    ("snapshots.md", "533,000 (", "snapshot", ["mariadb", "rows_per_s", "whole"]),
    ("snapshots.md", "1,121,000 rows/s", "snapshot_memory", ["narrow", "rows_per_s"]),
    ("verify.md", "28.3 s", "verify", ["postgres", "verifications", "kafka", "seconds"]),
    ("verify.md", "551 MiB", "verify", ["postgres", "verifications", "kafka", "rss_mib_peak"]),
    ("verify.md", "342 MiB", "verify", ["postgres", "verifications", "redis", "rss_mib_peak"]),
    ("verify.md", "16.8 s", "verify", ["postgres", "verifications", "file", "seconds"]),
    ("snapshots.md", "272 MiB", "snapshot_memory", ["narrow", "rss_mib_peak"]),
]
_MILLIONS = [
    ("data_contracts.md", "1.5 million events/s", "contract, columns"),
    ("data_contracts.md", "0.25 million/s", "contract, schema"),
    ("processors_python.md", "4.2 million events/s", "python, arrow"),
    ("processors_python.md", "0.68 million/s", "python, rows"),
    ("processors_python.md", "0.077 million/s", "python, events"),
    ("processors_sql.md", "0.52 million events/s", "sql"),
]


def measured(file, path):
    found = json.loads((CHECKOUT / "benchmarks" / "results" / f"{file}.json").read_text())
    return reduce(lambda value, key: value[key], path, found)


def shown(page, figure):
    assert figure in (CHECKOUT / "docs" / page).read_text(), f"{page} says no more {figure!r}"
    return float(re.search(r"[\d.,]*\d", figure)[0].replace(",", ""))


@pytest.mark.parametrize(("page", "figure", "file", "path"), _FIGURES)
def test_a_figure_is_the_one_that_was_measured(page, figure, file, path):
    assert shown(page, figure) == pytest.approx(measured(file, path), rel=0.02)


@pytest.mark.parametrize(("page", "figure", "case"), _MILLIONS)
def test_what_a_processor_costs_is_what_was_measured(page, figure, case):
    value = measured("processors", ["cases", case, _ALONE])

    assert shown(page, figure) * _MILLION == pytest.approx(value, rel=0.02)
