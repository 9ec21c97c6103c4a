"""The demo's last page: what was copied, what was streamed, and how long it took."""

import json
import statistics
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tests.demo.watching import Arrivals

TABLES = ("customers", "orders")
_KINDS = {"r": "copied", "c": "insert", "u": "update", "d": "delete"}


def differences(
    source: Mapping[int, Mapping[str, Any]], sink: Mapping[int, Mapping[str, Any]]
) -> list[int]:
    """Return the keys whose last state at the sink is not the source's."""
    wrong = []
    for key in {*source, *sink}:
        here, there = source.get(key), sink.get(key)
        if here is None or there is None or any(_text(here[c]) != _text(there[c]) for c in here):
            wrong.append(key)
    return sorted(wrong)


def show(
    console: Console, arrivals: Arrivals, tables: Mapping[str, Mapping[int, Any]], place: str
) -> bool:
    """Print the report; say whether the sink holds what the source holds."""
    counts = Table(title="\nWhat arrived", title_justify="left", box=box.SIMPLE_HEAD)
    counts.add_column("table")
    for heading in ("copied", "inserts", "updates", "deletes", "rows now", "equal"):
        counts.add_column(heading, justify="right", no_wrap=True)
    equal = True
    for name in TABLES:
        wrong = differences(tables[name], arrivals.state.get(name, {}))
        equal = equal and not wrong
        verdict = "[green]yes[/]" if not wrong else f"[bold red]{len(wrong)} differ[/]"
        ops = (f"{arrivals.counts[name, op]:,}" for op in "rcud")
        counts.add_row(f"shop.{name}", *ops, f"{len(tables[name]):,}", verdict)
        if wrong:
            console.print(f"[bold red]shop.{name} differs from the source at keys {wrong[:5]}[/]")
    console.print(counts)
    console.print("[dim]equal: the last state of every key is the row in the database[/]")
    _show_latency(console, arrivals)
    _show_examples(console, arrivals.examples)
    console.print(f"\nThe output lies in {place}")
    return equal


def _show_latency(console: Console, arrivals: Arrivals) -> None:
    live, waited = arrivals.latencies()
    if len(live) > 1:
        cuts = statistics.quantiles(live, n=100, method="inclusive")
        table = Table(
            title="\nLatency, statement to reader",
            title_justify="left",
            box=box.SIMPLE_HEAD,
        )
        for heading in ("events", "p50", "p99", "longest"):
            table.add_column(heading, justify="right")
        table.add_row(
            f"{len(live):,}", *(f"{ms:,.0f} ms" for ms in (cuts[49], cuts[98], max(live)))
        )
        console.print(table)
    else:
        console.print("\n[bold red]The stream never caught up: no event came within a second[/]")
    if waited:
        console.print(
            f"[dim]not counted: {len(waited):,} events written earlier, while tables were copied "
            f"and Spark started; they waited up to {max(waited) / 1000:,.0f} s[/]"
        )


def _show_examples(console: Console, examples: Mapping[str, Mapping[str, Any]]) -> None:
    table = Table(title="\nThe last of each kind", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("kind", no_wrap=True)
    table.add_column("row", no_wrap=True)
    table.add_column("what", overflow="fold")
    for op, kind in _KINDS.items():
        if op in examples:
            event = examples[op]
            image = event["after"] or event["before"]
            row = f"{event['source']['table']} {image['id']}"
            table.add_row(kind, row, Text(_what(event)))
    console.print(table)
    if "u" in examples:
        console.print("The update as it lies in the output, laid out for reading:")
        console.print_json(json.dumps(examples["u"]))


def _what(event: Mapping[str, Any]) -> str:
    before, after = event["before"] or {}, event["after"] or {}
    if event["op"] != "u":
        return _columns(after or before)
    shown = [
        f"{name}: {before.get(name)} → {value}"
        for name, value in after.items()
        if before.get(name) != value and name != "written_us"
    ]
    return ", ".join(shown) or "only written_us"


def _columns(image: Mapping[str, Any]) -> str:
    shown = {name: value for name, value in image.items() if name not in {"id", "written_us"}}
    return ", ".join(f"{name}: {value}" for name, value in shown.items())


def _text(value: object) -> str:
    return str(Decimal(value) if isinstance(value, Decimal) else value)
