"""``./dev.sh bench SINK``: our writer of one sink beside a bare client.

In one run both send the same rows, as events of the native envelope, in batches of the default
size, and take turns, so that a machine that becomes slower is slower for both. The bare client does
what its own documentation shows: one call per message, in pipelines where it has them.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from airflow_provider_deltaforge.columns.binary_columns import uuid_texts
from airflow_provider_deltaforge.events.message import Messages
from airflow_provider_deltaforge.sinks.contract import Sink
from benchmarks import nats_streams, redis_streams, webhooks
from tests.servers.process import Server

BATCH_ROWS = 2000
BATCHES = 50
ROUNDS = 5
PLACE = "orders"

Send = Callable[[Sequence[Messages]], None]


@dataclass(frozen=True)
class Case:
    """One sink.

    Attributes:
        start: starts its server in an own directory.
        sink: describes our sink for that server, writing to ``PLACE``.
        bare: returns what sends the same batches with the bare client.
        held: returns how many messages the server holds, and forgets them.
        batches: of how many batches a round consists.
        placed: names the place in a batch, where it depends on the server.
    """

    start: Callable[[Path], Server]
    sink: Callable[[Server], Sink]
    bare: Callable[[Server], Send]
    held: Callable[[Server], int]
    batches: int = BATCHES
    placed: Callable[[Server, Messages], Messages] = lambda _, batch: batch


CASES: Mapping[str, Case] = {
    "http": Case(webhooks.start, webhooks.sink, webhooks.bare, webhooks.held, 2, webhooks.placed),
    "http_arrays": Case(
        webhooks.start,
        webhooks.array_sink,
        webhooks.bare_arrays,
        webhooks.held,
        placed=webhooks.placed,
    ),
    "nats": Case(nats_streams.start, nats_streams.sink, nats_streams.bare, nats_streams.held, 10),
    "nats_once": Case(
        nats_streams.start, nats_streams.sink_once, nats_streams.bare, nats_streams.held, 10
    ),
    "redis": Case(redis_streams.start, redis_streams.sink, redis_streams.bare, redis_streams.held),
    "redis_once": Case(
        redis_streams.start, redis_streams.sink_once, redis_streams.bare, redis_streams.held
    ),
}


def rows(batch: Messages) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Yield value, key and id of each message, as the objects a bare client takes."""
    names = uuid_texts(batch.event_ids).to_pylist()
    return zip(batch.values.to_pylist(), batch.keys.to_pylist(), names, strict=True)


def batches(count: int) -> list[Messages]:
    """Return batches of messages as rendering makes them: about 300 bytes of JSON each."""
    return [_batch(number) for number in range(count)]


def _batch(number: int) -> Messages:
    span = range(number * BATCH_ROWS, (number + 1) * BATCH_ROWS)
    note = b"x" * 200
    texts = [b'{"before":null,"after":{"id":%d,"note":"%b"},"op":"c"}' % (n, note) for n in span]
    return Messages(
        topics=pa.repeat(pa.scalar(PLACE), BATCH_ROWS).dictionary_encode(),
        keys=pa.array([b'{"id":%d}' % n for n in span], pa.binary()),
        values=pa.array(texts, pa.binary()),
        headers=None,
        event_ids=pa.array([n.to_bytes(16, "big") for n in span], pa.binary(16)),
        event_rows=pa.array(np.arange(BATCH_ROWS), pa.int32()),
    )


def measure(name: str) -> dict[str, Any]:
    """Return what both make of the same messages on one server."""
    case = CASES[name]
    sent = batches(case.batches)
    with tempfile.TemporaryDirectory(prefix="deltaforge-bench-") as place:
        server = case.start(Path(place))
        try:
            sent = [case.placed(server, batch) for batch in sent]
            writer = case.sink(server).open("bench")
            ways: dict[str, Send] = {
                "ours": lambda some: _write(writer, some),
                "bare_client": case.bare(server),
            }
            rounds: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
            for send in ways.values():  # Once unmeasured: connections, caches, compiled kernels.
                _round(case, server, send, sent[:2])
            for _ in range(ROUNDS):
                for way, send in ways.items():
                    rounds[way].append(_round(case, server, send, sent))
            writer.close()
        finally:
            server.stop()
    rates: dict[str, Any] = {"rows_per_round": case.batches * BATCH_ROWS, "rounds": ROUNDS}
    for way, found in rounds.items():
        rates[way] = {key: round(statistics.median(r[key] for r in found), 2) for key in found[0]}
    ratio = rates["ours"]["rows_per_s"] / rates["bare_client"]["rows_per_s"]
    return rates | {"rows_per_s_to_bare_client": round(ratio, 2)}


def _write(writer: Any, some: Sequence[Messages]) -> None:
    for batch in some:
        if writer.write(batch):
            raise RuntimeError("a message was refused")


def _round(case: Case, server: Server, send: Send, sent: Sequence[Messages]) -> dict[str, float]:
    count = len(sent) * BATCH_ROWS
    served = psutil.Process(server.pid)
    before, began, spent = sum(served.cpu_times()[:2]), time.perf_counter(), time.process_time()
    send(sent)
    wall_s = time.perf_counter() - began
    held = case.held(server)
    if held != count:
        raise RuntimeError(f"{held} of {count} messages arrived")
    return {
        "rows_per_s": round(count / wall_s),
        "client_cpu_us_per_row": 1e6 * (time.process_time() - spent) / count,
        "server_cpu_us_per_row": 1e6 * (sum(served.cpu_times()[:2]) - before) / count,
    }


def main(name: str, results: Path, about: Mapping[str, Any]) -> None:
    """Measure one sink, show it, and write it beside the others."""
    measured = {**about, **measure(name)}
    path = results / "sinks.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**known, name: measured}, indent=2) + "\n")
    table = Table(title=f"{name}: {measured['rows_per_round']:,} rows a round")
    for title in ("", "rows/s", "client µs/row", "server µs/row"):
        table.add_column(title, justify="right")
    for way in ("ours", "bare_client"):
        figures = measured[way]
        table.add_row(
            way.replace("_", " "),
            f"{figures['rows_per_s']:,.0f}",
            f"{figures['client_cpu_us_per_row']}",
            f"{figures['server_cpu_us_per_row']}",
        )
    out = Console()
    out.print(table)
    out.print(f"{measured['rows_per_s_to_bare_client']} times a bare client")
    out.print("written to benchmarks/results/sinks.json")
