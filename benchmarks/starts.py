"""``./dev.sh bench starts``: from a start, or a kill, to the next delivered event, and its CPU.

A writer commits all the time. The clock stops when Kafka has one more message than at the start.
"""

import os
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil
from confluent_kafka import Consumer, TopicPartition

from benchmarks.processes import Sampler, wait_until
from benchmarks.whole import Pipeline, written_steadily
from tests.servers.process import Server

_RATE, _ROUNDS = 200, 3
REST_S = 1.0
"""After a kill: what the killed driver had sent arrives, and is not taken for its successor's."""


def measure(pipeline: Pipeline, server: Server, master: str | None) -> dict[str, Any]:
    """Start and kill a driver several times; return seconds and CPU seconds of each start."""
    pipeline.begin_at(pipeline.source.head())
    seconds: list[float] = []
    cpu: list[float] = []
    processes: dict[str, dict[str, float]] = {}
    with written_steadily(pipeline.work, server, _RATE), _topic(pipeline) as watched:
        for _ in range(_ROUNDS + 1):
            before = watched.get_watermark_offsets(_partition(pipeline))[1]
            begun = time.perf_counter()
            driver = pipeline.start(master)
            sampler = Sampler({"driver": driver.pid})
            wait_until(lambda: watched.get_watermark_offsets(_partition(pipeline))[1] > before)  # noqa: B023
            seconds.append(time.perf_counter() - begun)
            processes = sampler.stop()
            cpu.append(sum(used["cpu_s"] for used in processes.values()))
            _kill(driver)
            time.sleep(REST_S)
    # The first start has more to do than those behind a kill: it fixes where the stream begins.
    return {
        "first_s": round(seconds[0], 2),
        "after_kill_s": round(statistics.median(seconds[1:]), 2),
        "after_kill_s_all": [round(each, 2) for each in seconds[1:]],
        "cpu_s": round(statistics.median(cpu[1:]), 2),
        "processes": processes,
    }


def _partition(pipeline: Pipeline) -> TopicPartition:
    return TopicPartition(pipeline.name, 0)


@contextmanager
def _topic(pipeline: Pipeline) -> Iterator[Consumer]:
    consumer = Consumer({"bootstrap.servers": pipeline.brokers, "group.id": "starts"})
    try:
        yield consumer
    finally:
        consumer.close()


def _kill(driver: "subprocess.Popen[bytes]") -> None:
    family = [
        driver.pid,
        *(each.pid for each in psutil.Process(driver.pid).children(recursive=True)),
    ]
    for pid in family:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    driver.wait()
