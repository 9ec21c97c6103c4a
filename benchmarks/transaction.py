"""One transaction of millions of rows: how fast it goes through, and in how much memory.

The server writes it with one statement, so that it is one transaction of the log. Memory is the
peak of each process while the transaction passes, under default settings.
"""

import time
from typing import Any

from benchmarks import whole
from benchmarks.processes import Sampler, wait_until
from tests.servers.process import Server

LANE_MIB = 512
"""What a lane's Python worker may hold."""
DRIVER_MIB = 700
"""What the driver's JVM may hold."""

_PATIENCE_S = 3600.0


def measure(
    pipeline: whole.Pipeline, server: Server, rows: int, master: str | None, servers: dict[str, int]
) -> dict[str, Any]:
    """Let one transaction of ``rows`` rows pass; the clock runs from its first rows to its last.

    Args:
        pipeline: applied, not started.
        server: the source.
        rows: of the transaction.
        master: Spark's; None for a plain process.
        servers: name and process id of the others to watch.
    """
    begin = pipeline.source.head()
    begun = time.perf_counter()
    pipeline.work.write_transaction(server, rows)
    writing_s = time.perf_counter() - begun
    pipeline.begin_at(begin)
    with pipeline.running(master) as driver:
        sampler = Sampler({"driver": driver, **servers})
        wait_until(lambda: pipeline.events() > 0, _PATIENCE_S)
        sampler.reset()
        first, begun = pipeline.events(), time.perf_counter()
        wait_until(lambda: pipeline.events() >= rows, _PATIENCE_S)
        seconds = time.perf_counter() - begun
        progress = pipeline.control.progress()
        processes = sampler.stop()
    if progress is None or progress.events != rows:
        raise AssertionError(
            f"{progress.events if progress else 0} of {rows} events were delivered"
        )
    # Workers are forked: together they count what they share more than once.
    carrier = "driver: Python workers" if master else "driver: application"
    lane = processes[carrier]["rss_mib_largest"]
    jvm = processes.get("driver: JVM", {}).get("rss_mib_peak", 0.0)
    return {
        "events": rows,
        "writing_s": round(writing_s, 1),
        "rows_per_s": round((rows - first) / seconds),
        "batches": progress.batches,
        "transaction_splits": progress.transaction_splits,
        "lane_rss_mib_peak": lane,
        "lane_within_budget": int(lane <= LANE_MIB),
        "jvm_rss_mib_peak": jvm,
        "jvm_within_budget": int(jvm <= DRIVER_MIB),
        "processes": processes,
    }
