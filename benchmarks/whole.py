"""A whole pipeline in its own processes: drain a backlog, or keep up with a steady writer."""

import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from airflow_provider_deltaforge.control import pipelines, snapshots
from airflow_provider_deltaforge.control.launching.contract import LaunchSpec
from airflow_provider_deltaforge.control.launching.spark_submit import command, environment
from airflow_provider_deltaforge.control.snapshots import CopySelection
from airflow_provider_deltaforge.spec.load import load as load_document
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.control import Control
from benchmarks import workload
from benchmarks.processes import Sampler, thread_cpu, wait_until
from tests.servers.process import Server
from tests.sinks.kafka_reader import read_timestamps

TUNED = {"max_events": 16000, "max_ms": 100, "max_inflight": 4}
RATES = [20, 200, 2_000, 10_000, 20_000]
_BEFORE_S, _SAMPLE_S, _WARM_S = 10.0, 0.25, 3.0
RUN_LOCAL = (
    "import sys; from benchmarks.thread_names import show_thread_names; show_thread_names(); "
    "from airflow_provider_deltaforge.engine.driver.local import run_local; "
    "from airflow_provider_deltaforge.storage.location import StoreLocation; "
    "sys.exit(run_local(sys.argv[1], StoreLocation.from_environment(), 1))"
)


class Pipeline:
    """One pipeline from the benchmark's table to a topic of its own."""

    def __init__(  # noqa: PLR0913 - what a pipeline is made of
        self,
        name: str,
        directory: Path,
        server: Server,
        brokers: str,
        batch: dict[str, int],
        work: ModuleType = workload,
        sink: Mapping[str, Any] | None = None,
        *,
        archives: bool = False,
    ) -> None:
        self.name = name
        self.work = work
        self.brokers = brokers
        document: dict[str, Any] = {
            "metadata": {"name": name, "tenant": "bench"},
            "spec": {
                "source": {
                    "type": work.SOURCE_TYPE,
                    "config": work.source_settings(server, name),
                },
                "batch": batch,
                "sinks": [
                    {
                        "type": "kafka",
                        "config": {
                            "id": "kafka",
                            "brokers": brokers,
                            "topic": name,
                            **(sink or {}),
                        },
                    }
                ],
            },
        }
        if archives:
            document["spec"]["archive"] = {"directory": str(directory / "archive")}
        topic = NewTopic(name, 1, 1, config={"message.timestamp.type": "LogAppendTime"})
        admin = AdminClient({"bootstrap.servers": brokers})
        for created in admin.create_topics([topic]).values():
            created.result()
        self.dsn = f"sqlite:///{directory}/{name}.db"
        self.store = StoreLocation.from_dsn(self.dsn).create()
        text = json.dumps(document)
        pipelines.apply(self.store, text)
        self.control = Control(self.store, name)
        self.source = load_document(text).spec.source
        self.log = directory / f"{name}.log"

    def begin_at(self, position: Any) -> None:
        """Let the stream begin at a position."""
        checkpoints = Checkpoints(self.store, self.name, self.source.id)
        self.store.transact([checkpoints.put("kafka", position)])

    def start(self, master: str | None) -> "subprocess.Popen[bytes]":
        """Start the driver."""
        self.control.update(
            lambda old: old.model_copy(update={"desired": "running", "generation": 1})
        )
        job = LaunchSpec(self.name, 1, "stream_job.py", self.dsn, master or "")
        line = command(job) if master else [sys.executable, "-c", RUN_LOCAL, self.name]
        with self.log.open("wb") as log:
            return subprocess.Popen(
                line, env=environment(job), stdout=log, stderr=log, start_new_session=True
            )

    @contextmanager
    def running(self, master: str | None) -> Iterator[int]:
        """Run the driver; yields its process id."""
        driver = self.start(master)
        try:
            yield driver.pid
        finally:
            pipelines.ask_to_stop(self.store, self.name)
            driver.wait(60)

    def events(self) -> int:
        """Return how many events were delivered."""
        progress = self.control.progress()
        return progress.events if progress is not None else 0

    def batches(self) -> int:
        """Return in how many batches."""
        progress = self.control.progress()
        return progress.batches if progress is not None else 0


def drain(
    pipeline: Pipeline, events: int, log_bytes: int, master: str | None, servers: dict[str, int]
) -> dict[str, Any]:
    """Deliver a backlog; the clock runs from the first delivered batch to the last."""
    with pipeline.running(master) as driver:
        sampler = Sampler({"driver": driver, **servers})
        wait_until(lambda: pipeline.events() > 0)
        sampler.reset()
        first, begun = pipeline.events(), time.perf_counter()
        wait_until(lambda: pipeline.events() >= events)
        seconds = time.perf_counter() - begun
        processes = sampler.stop()
    moved = events - first
    for usage in processes.values():
        usage["cpu_s_per_million"] = round(usage["cpu_s"] / moved * 1e6, 3)
    total = sum(usage["cpu_s"] for usage in processes.values())
    return {
        "events": events,
        "rows_per_s": round(moved / seconds),
        "log_mb_per_s": round(log_bytes * moved / events / seconds / 1e6, 1),
        "cpu_s_per_million": round(total / moved * 1e6, 3),
        "processes": processes,
    }


@dataclass
class _Window:
    """A time in which a writer held its rate."""

    rate: int
    from_ms: float
    until_ms: float
    batches: int
    processes: dict[str, dict[str, float]]
    threads: dict[str, float]
    """CPU seconds of the driver by thread."""
    waits: list[float] = field(default_factory=list)

    def result(self) -> dict[str, Any]:
        seconds = (self.until_ms - self.from_ms) / 1000
        cuts = statistics.quantiles(self.waits, n=1000)
        for used in self.processes.values():
            used["cpu_s_per_million"] = round(used["cpu_s"] / len(self.waits) * 1e6, 1)
        return {
            "asked_per_s": self.rate,
            "events_per_s": round(len(self.waits) / seconds),
            "batches_per_s": round(self.batches / seconds, 1),
            "p50_ms": cuts[499],
            "p99_ms": cuts[989],
            "p999_ms": cuts[998],
            "max_ms": max(self.waits),
            "processes": self.processes,
            "threads_cpu_s_per_million": {
                name: round(spent / len(self.waits) * 1e6, 1)
                for name, spent in self.threads.items()
            },
        }


def latencies(
    pipeline: Pipeline,
    server: Server,
    rates: Sequence[int],
    seconds: int,
    master: str | None,
    servers: dict[str, int],
) -> list[dict[str, Any]]:
    """Write steadily at each rate, one after the other, to the same driver.

    Latency is the broker's append time less the source's commit time.
    """
    windows: list[_Window] = []
    for rate in rates:
        with _written_to(pipeline, server, rate, master) as driver:
            time.sleep(_WARM_S)
            sampler = Sampler({"driver": driver, **servers})
            sampler.reset()
            from_ms, batches = time.time() * 1000, pipeline.batches()
            before = thread_cpu(driver)
            time.sleep(seconds)
            until_ms, batches = time.time() * 1000, pipeline.batches() - batches
            threads = {
                name: spent - before.get(name, 0.0) for name, spent in thread_cpu(driver).items()
            }
            windows.append(_Window(rate, from_ms, until_ms, batches, sampler.stop(), threads))
    for appended, value in read_timestamps(pipeline.brokers, pipeline.name):
        for window in windows:
            if window.from_ms <= appended < window.until_ms:
                window.waits.append(appended - json.loads(value)["ts_ms"])
    return [window.result() for window in windows]


def copy_beside(
    pipeline: Pipeline,
    server: Server,
    rate: int,
    master: str | None,
    servers: dict[str, int],
) -> dict[str, Any]:
    """Copy a table beside the stream of a steady writer; lag is from commit to delivery."""
    with _written_to(pipeline, server, rate, master) as driver:
        before = _lags(pipeline, lambda began: time.monotonic() - began > _BEFORE_S)
        sampler = Sampler({"driver": driver, **servers})
        sampler.reset()
        begun = time.perf_counter()
        name = pipeline.name
        snapshots.request(pipeline.store, name, CopySelection(), "copy", "benchmark")

        def state() -> snapshots.RequestState:
            return snapshots.request_state(pipeline.store, name, "copy")

        during = _lags(pipeline, lambda _: state().settled)
        seconds = time.perf_counter() - begun
        processes = sampler.stop()
    copied = state()
    if copied.state != "done":
        raise RuntimeError(f"the copy is {copied.state}: {copied.reason}")
    return {
        "rows": copied.rows,
        "rows_per_s": round(copied.rows / seconds),
        "written_per_s": rate,
        "lag_ms_median": round(statistics.median(during)),
        "lag_ms_max": max(during),
        "lag_ms_median_before": round(statistics.median(before)),
        "lag_ms_max_before": max(before),
        "processes": processes,
    }


def _lags(pipeline: Pipeline, is_over: Callable[[float], bool]) -> list[int]:
    """Sample how old the newest delivered event was at its delivery, in ms."""
    began, lags = time.monotonic(), []
    while not is_over(began):
        progress = pipeline.control.progress()
        lags.append((progress.lag_ms or 0) if progress is not None else 0)
        time.sleep(_SAMPLE_S)
    return lags


@contextmanager
def _written_to(pipeline: Pipeline, server: Server, rate: int, master: str | None) -> Iterator[int]:
    """Run a pipeline from the log's end beside a steady writer; yields the driver's process id."""
    pipeline.begin_at(pipeline.source.head())
    with pipeline.running(master) as driver:
        wait_until(
            lambda: (progress := pipeline.control.progress()) and progress.status == "running"
        )
        with written_steadily(pipeline.work, server, rate):
            wait_until(lambda: pipeline.events() > rate)
            yield driver
        time.sleep(1)  # What was written last arrives.


@contextmanager
def written_steadily(work: ModuleType, server: Server, rate: int) -> Iterator[None]:
    """Commit transactions of 20 rows at ``rate`` rows per second, in a thread."""
    over = threading.Event()
    writer = threading.Thread(target=_write, args=(work, server, rate, over), daemon=True)
    writer.start()
    try:
        yield
    finally:
        over.set()
        writer.join()


def _write(work: ModuleType, server: Server, rate: int, over: threading.Event) -> None:
    rows = 20
    with work.writer(server) as connection:
        began, sent = time.perf_counter(), 0
        while not over.is_set():
            work.write_some(connection, rows)
            sent += rows
            ahead = sent / rate - (time.perf_counter() - began)
            if ahead > 0:
                time.sleep(ahead)
