"""A pipeline of the scripted source whose file holds what its table does, without a driver."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.sources.scripted import ScriptedSource
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from tests.control.bench import DOCUMENT

SOURCE = ScriptedSource(id="shop-db", transactions=10, rows=3)
KEYS = sorted({key for _, _, key in SOURCE.events(1, 10)})


def hold(store: Any, directory: Path, document: str = DOCUMENT, tx: int = 10) -> Path:
    """Apply a document, and write what its sink holds up to a transaction; return the file."""
    pipelines.apply(store, document)
    store.transact([Checkpoints(store, "orders", "shop-db").put("files", {"tx": tx})])
    path = directory / "rows.jsonl"
    lines = [
        line("u", {"id": key, "tx": number, "row": row})
        for number, row, key in SOURCE.events(1, tx)
    ]
    path.write_text("".join(lines))
    return path


def line(op: str, row: dict[str, Any]) -> str:
    """Return an event as the sink writes it."""
    before, after = (row, None) if op == "d" else (None, row)
    place = {"db": "script", "table": "rows"}
    event = {"before": before, "after": after, "source": place, "op": op}
    return json.dumps(event, separators=(",", ":")) + "\n"


def tamper(path: Path) -> None:
    """Write what the source never held: one row too few, one too many, one changed."""
    with path.open("a") as file:
        file.write(line("d", {"id": KEYS[0], "tx": 1, "row": 1}))
        file.write(line("u", {"id": KEYS[1], "tx": 99, "row": 0}))
        file.write(line("c", {"id": 7000, "tx": 1, "row": 0}))
        file.write("no event\n")


def key(number: int) -> str:
    """Return a row's key as events hold it."""
    return f'{{"id":{number}}}'


_CALLS = itertools.count()


def flip(request: Any) -> Iterator[pa.RecordBatch]:
    """Return the table, in the first calls with a row as it was: it goes back and forth."""
    yield from read(request, 9 if next(_CALLS) < 3 else 10)


def read(request: Any, tx: int = 10) -> Iterator[pa.RecordBatch]:
    """Return the table as a warehouse holds it, up to a transaction."""
    assert (request.table, request.key) == ("script.rows", ("id",))
    state = {number: (at, row) for at, row, number in SOURCE.events(1, tx)}
    columns = {
        "row": pa.array([row for _, row in state.values()], pa.int8()),
        "id": pa.array(state, pa.int64()),
        "tx": pa.array([str(at) for at, _ in state.values()], pa.utf8()),
    }
    fields = [pa.field(name, column.type) for name, column in columns.items()]
    # What events show in a form of their own is a text that says so.
    fields[2] = fields[2].with_metadata({"json": "true"})
    yield pa.RecordBatch.from_arrays(list(columns.values()), schema=pa.schema(fields))
