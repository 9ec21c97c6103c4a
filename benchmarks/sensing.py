"""Schema sensing beside rendering alone, on one core and without a server.

Every case takes the same batches. What learning costs until a table is warm, and what goes on
afterwards, is measured apart: a backlog of default settings pays the first alone.
"""

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from airflow_provider_deltaforge.engine.render.renderer import Renderer
from airflow_provider_deltaforge.envelopes.contract import Origin
from airflow_provider_deltaforge.events.schema import Column, TableSchema
from airflow_provider_deltaforge.sensing.sensor import SchemaSensor
from airflow_provider_deltaforge.sinks.memory import MemorySink
from airflow_provider_deltaforge.spec.sensing import SchemaSensing
from airflow_provider_deltaforge.testing.changes import change, change_rows

_BATCH = 12_000
_BATCHES = 12
_ROUNDS = 3
_ENDLESS = {"deep_inspect": {"max_sample_size": 0}}
_CASES: dict[str, dict[str, Any]] = {
    "defaults, every table stable": {},
    "endless, one event in 10": _ENDLESS,
    "endless, one event in 100": {**_ENDLESS, "sampling": {"sample_rate": 100}},
    "endless, every event": {**_ENDLESS, "sampling": {"sample_rate": 1}},
    "endless, every event parsed": {
        **_ENDLESS,
        "sampling": {"sample_rate": 1},
        "tracking": {"field_statistics": True},
    },
}


def main(results: Path, result: dict[str, Any]) -> None:
    """Measure, write down and show."""
    pa.set_cpu_count(1)
    result |= {
        "cpu_s_per_million": {
            name: _measure(tables) for name, tables in (("3 tables", 3), ("120 tables", 120))
        }
    }
    (results / "sensing.json").write_text(json.dumps(result, indent=2) + "\n")
    for name, cases in result["cpu_s_per_million"].items():
        table = Table(title=f"{name}, batches of {_BATCH:,}")
        for column in ("case", "CPU s per million", "evolutions", "cache hits", "maps"):
            table.add_column(column)
        for case, figures in cases.items():
            table.add_row(case, *(str(figure) for figure in figures.values()))
        Console().print(table)


def _measure(tables: int) -> dict[str, dict[str, float]]:
    chance = random.Random(tables)
    batches = [_batch(chance, tables) for _ in range(_BATCHES)]
    renderer = Renderer(MemorySink(), Origin("bench", "acme", "mysql", "0"))
    sensors = {name: _sensor(changed) for name, changed in _CASES.items()}
    warm = {name: _warmed(sensor, chance, tables) for name, sensor in sensors.items()}
    before = {name: _counts(sensor) for name, sensor in sensors.items()}
    rendering = float("inf")
    best = dict.fromkeys(_CASES, float("inf"))
    for _ in range(_ROUNDS):  # In turns, so that what else the machine does is shared.
        rendering = min(rendering, _timed(renderer.render, batches))
        for name, sensor in sensors.items():
            best[name] = min(best[name], _timed(sensor.observe, batches))
    found: dict[str, dict[str, float]] = {"rendering alone": {"cpu_s": round(rendering, 3)}}
    learned = warm["endless, one event in 10"]
    found["learning, per 1,000 events of a table"] = {"cpu_s": learned}
    for name, sensor in sensors.items():
        after = _counts(sensor)
        evolutions, hits, misses = (b - a for a, b in zip(before[name], after, strict=True))
        found[name] = {
            "cpu_s": round(best[name], 3),
            "evolutions": evolutions,
            "hit_rate": round(hits / (hits + misses), 4) if hits + misses else 1.0,
            "maps": sensor.dynamic_maps(),
        }
    return found


def _sensor(changed: dict[str, Any]) -> SchemaSensor:
    columns = {"id": "bigint", "name": "varchar", "price": "decimal", "data": "json"}

    def schema(db: str, _schema: str | None, table: str, _version: str | None) -> TableSchema:
        return TableSchema(db, None, table, tuple(Column(n, k, k) for n, k in columns.items()))

    settings = SchemaSensing.model_validate({"enabled": True, **changed})
    return SchemaSensor(settings, "acme", schema, cost=lambda: 0.0)


def _warmed(sensor: SchemaSensor, chance: random.Random, tables: int) -> float:
    """Let a sensor learn every table; return the CPU s for 1,000 events of one."""
    rows = max(_BATCH, 1100 * tables)
    parts = [_batch(chance, tables) for _ in range(-(-rows // _BATCH))]
    spent = _timed(sensor.observe, parts) * len(parts) * _BATCH / 1e6
    return round(spent / tables, 4)


def _timed(work: Any, batches: list[pa.RecordBatch]) -> float:
    """Return CPU s for a million events."""
    started = time.process_time()
    for rows in batches:
        work(rows)
    return (time.process_time() - started) / (len(batches) * _BATCH) * 1e6


def _counts(sensor: SchemaSensor) -> list[int]:
    found = sensor.counts().values()
    return [
        sum(getattr(counts, name) for counts in found)
        for name in ("evolutions", "cache_hits", "cache_misses")
    ]


def _batch(chance: random.Random, tables: int) -> pa.RecordBatch:
    return change_rows(list(_changes(chance, tables)))


def _changes(chance: random.Random, tables: int) -> Iterator[dict[str, Any]]:
    """Yield rows of some 250 bytes, with two new session ids in each JSON column."""
    for number in range(_BATCH):
        sessions = {
            f"sess_{chance.getrandbits(48):012x}": {"user": number, "at": 1.5} for _ in range(2)
        }
        image = {
            "id": number,
            "name": f"customer {number}",
            "price": "12.50",
            "data": {"kind": "a", "tags": ["x", "y"], "sessions": sessions},
        }
        if chance.random() < 0.2:
            image["price"] = None
        yield change(table=f"t{number % tables}", after=json.dumps(image).encode(), row=number)
