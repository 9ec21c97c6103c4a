"""The demo's last page: what was copied, what was streamed, and how long it took."""

import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tests.demo.arrivals import ENVELOPES, Arrivals, Rows, latencies, lost
from tests.demo.shop import Change

_SHOWN = (
    ("native", "u", "an update"),
    ("debezium", "c", "an insert"),
    ("cloudevents", "d", "a delete"),
)
_TEXT_MAX = 40


def show(
    console: Console,
    arrivals: Arrivals,
    tables: Mapping[str, Rows],
    commits: Mapping[Change, float],
) -> bool:
    """Print the report; say whether every change came and the output holds what the source does."""
    missing = lost(commits, arrivals.seen, arrivals.copied)
    equal = _show_tables(console, arrivals, tables, missing)
    _show_latency(console, *latencies(commits, arrivals.seen))
    _show_examples(console, arrivals)
    return equal


def _show_tables(
    console: Console, arrivals: Arrivals, tables: Mapping[str, Rows], missing: Sequence[Change]
) -> bool:
    page = _page(console, "What arrived", "table")
    for heading in ("copied", "inserts", "updates", "deletes", "lost", "rows now", "equal"):
        page.add_column(heading, justify="right", no_wrap=True)
    equal = True
    for name, rows in tables.items():
        wrong = arrivals.differences(name, rows)
        own_missing = [change for change in missing if change[0] == name]
        well = not wrong and not own_missing
        equal = equal and well
        verdict = "[green]yes[/]" if well else "[bold red]no[/]"
        ops = (f"{arrivals.events(op, name):,}" for op in "rcud")
        page.add_row(name, *ops, f"{len(own_missing):,}", f"{len(rows):,}", verdict)
        for envelope, keys in wrong.items():
            console.print(
                f"[bold red]{name} in {envelope} differs from the source in {len(keys)} "
                f"rows; the first keys are {keys[:5]}[/]"
            )
        if own_missing:
            console.print(
                f"[bold red]{len(own_missing)} changes of {name} were committed while the stream "
                f"ran and never came; the first are {own_missing[:3]}[/]"
            )
    console.print(page)
    console.print("[dim]lost: changes committed since the stream began that never came[/]")
    console.print("[dim]equal: none is lost, and every row is the database's in each envelope[/]")
    return equal


def _show_latency(console: Console, live: list[float], waited: list[float]) -> None:
    if len(live) > 1:
        page = _page(
            console, "Latency, from the writer's commit to a reader of the file", "live changes"
        )
        for heading in ("p50", "p99", "longest"):
            page.add_column(heading, justify="right")
        cuts = statistics.quantiles(live, n=100, method="inclusive")
        page.add_row(
            f"{len(live):,}", *(f"{s * 1000:,.0f} ms" for s in (cuts[49], cuts[98], max(live)))
        )
        console.print(page)
    else:
        console.print("\n[bold red]The stream never caught up: no change came within a second[/]")
    if waited:
        console.print(
            f"[dim]not counted: {len(waited):,} changes made earlier, while tables were copied and "
            f"Spark started; they waited up to {max(waited):,.0f} s[/]"
        )


def _show_examples(console: Console, arrivals: Arrivals) -> None:
    for envelope, op, words in _SHOWN:
        event = arrivals.examples.get((envelope, op))
        if event is not None:
            console.print(Text.assemble("\n", (f"{words} in the {envelope} envelope", "italic")))
            console.print(laid_out(event, console.width - 1), markup=False, soft_wrap=True)
    counted = (f"{arrivals.events('rcud', envelope=name):,} {name}" for name in ENVELOPES)
    console.print(f"\nEvents written: {', '.join(counted)}", highlight=False)


def laid_out(value: Any, width: int, indent: str = "", label: str = "") -> str:
    """Return JSON for reading: long texts are cut, and an object without objects fills its lines.

    Args:
        value: what to show.
        width: columns there are.
        indent: what the lines after the first begin with.
        label: what the first line begins with.
    """
    if isinstance(value, str) and len(value) > _TEXT_MAX:
        value = f"{value[:_TEXT_MAX]}…"
    flat = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict) or len(indent) + len(label) + len(flat) < width:
        return f"{label}{flat}"
    inner = indent + "  "
    parts = [laid_out(item, width, inner, f'"{name}": ') for name, item in value.items()]
    if not any(isinstance(item, dict) for item in value.values()):
        return f"{label}{{{_filled(parts, width, inner, label)}}}"
    return f"{label}{{\n" + ",\n".join(inner + part for part in parts) + f"\n{indent}}}"


def _filled(parts: list[str], width: int, indent: str, label: str) -> str:
    """Return the parts with commas, as many on a line as there is room for."""
    lines = [""]
    used = len(indent) + len(label)
    for part in parts:
        if lines[-1] and used + len(part) + 3 > width:
            lines.append("")
            used = len(indent)
        lines[-1] += f", {part}" if lines[-1] else part
        used += len(part) + 2
    return f",\n{indent}".join(lines)


def _page(console: Console, title: str, first: str) -> Table:
    console.print(Text(f"\n{title}", "italic"))
    page = Table(box=box.SIMPLE, show_edge=False, padding=(0, 2, 0, 0))
    page.add_column(first)
    return page
