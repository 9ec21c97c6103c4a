"""Tables people read, and the console that prints them."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import (
    Console,
    ConsoleOptions,
    ConsoleRenderable,
    Group,
    RenderableType,
    RenderHook,
    RenderResult,
)
from rich.filesize import decimal
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from airflow_provider_deltaforge.control.status import PipelineStatus
from airflow_provider_deltaforge.sources.contract import Finding
from airflow_provider_deltaforge.storage.records.stats import (
    ArchiveProgress,
    DeadLetterCounts,
    ProcessorCounts,
    TableCounts,
)

_COLOURS = {
    "running": "green",
    "snapshotting": "cyan",
    "starting": "cyan",
    "blocked": "yellow",
    "paused": "yellow",
    "failed": "bold red",
    "lost": "bold red",
    "ok": "green",
    "warn": "yellow",
    "high_risk": "bold yellow",
    "fail": "bold red",
}


_UNFOLDED_WIDTH = 1_000_000


def new_console(*, stderr: bool = False) -> Console:
    """Return a console that folds and pads no line, unless it is a terminal or ``COLUMNS`` is set.

    Other programs then read each row of a table as one line.
    """
    # Reasons and names may hold brackets, which are no style then.
    console = Console(stderr=stderr, markup=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _UNFOLDED_WIDTH
        console.push_render_hook(_PaddingRemover())
    return console


class _PaddingRemover(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Unpadded(renderable) for renderable in renderables]


@dataclass(frozen=True)
class _Unpadded:
    renderable: ConsoleRenderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        segments = console.render(self.renderable, options)
        for line, has_end in Segment.split_lines_terminator(segments):
            text = "".join(segment.text for segment in line)
            yield Segment(text.rstrip(" ") if has_end else text)
            if has_end:
                yield Segment.line()


class _RowTable(Table):
    """A table of which each row is one line if it is not folded."""

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        """Add a row; the lines of a text become one."""
        joined = (" ".join(cell.split("\n")) if isinstance(cell, str) else cell for cell in cells)
        super().add_row(*joined, **options)


def coloured(word: str) -> Text:
    """Return a status or verdict in its colour."""
    return Text(word, style=_COLOURS.get(word, ""))


def new_table(*titles: str) -> Table:
    """Return an empty table whose columns fold what is long."""
    table = _RowTable(box=None, pad_edge=False)
    for title in titles:
        table.add_column(title, overflow="fold")
    return table


def pipelines_table(pipelines: Sequence[PipelineStatus]) -> RenderableType:
    """Return one line per pipeline, and below them why one is not well: 80 columns are enough."""
    if not pipelines:
        return Text("No pipelines yet; start one with `deltaforge run FILE`.")
    table = Table(box=None, pad_edge=False)
    table.add_column("pipeline", overflow="fold")
    for title in ("status", "wanted"):
        table.add_column(title, no_wrap=True)
    for title in ("gen", "events", "lag", "heartbeat"):
        table.add_column(title, justify="right", no_wrap=True)
    for pipeline in pipelines:
        table.add_row(
            pipeline.name,
            coloured(pipeline.status),
            pipeline.desired,
            str(pipeline.generation),
            f"{pipeline.events:,}",
            duration_text(None if pipeline.lag_ms is None else pipeline.lag_ms / 1000),
            duration_text(pipeline.heartbeat_age_s, " ago"),
        )
    reasons = [
        Text.assemble("\n", (pipeline.name, "bold"), f": {pipeline.reason}")
        for pipeline in pipelines
        if pipeline.reason
    ]
    return Group(table, *reasons)


def pipeline_details(pipeline: PipelineStatus) -> RenderableType:
    """Return everything known about one pipeline."""
    parts: list[RenderableType] = [pipelines_table([pipeline])]
    if pipeline.position is not None:
        parts.append(_named("position", json.dumps(dict(pipeline.position))))
    if pipeline.sinks:
        late = ("lag_ms",) if any(entry.lag_ms for entry in pipeline.sinks.values()) else ()
        keys = ("status", *late, "events", "bytes", "retries", "reason")
        parts.append(_entries("sink", pipeline.sinks, keys))
    if pipeline.processors:
        parts.append(_processors(pipeline.processors))
    if pipeline.tables:
        parts.append(_tables(pipeline.tables))
    if pipeline.archive is not None:
        parts.append(_named("archive", _archive(pipeline.archive)))
    if pipeline.dlq.entries is not None:
        parts.append(_named("dlq", _dead_letters(pipeline.name, pipeline.dlq)))
    for name, entry in sorted(pipeline.stopped_tables.items()):
        parts.append(Text.assemble("\nstopped   ", (name, "bold red"), f": {entry['reason']}"))
    if pipeline.handle:
        parts.append(_named("driver", str(pipeline.handle.get("name"))))
        parts.append(Text(_driver_place(pipeline.handle), overflow="fold", no_wrap=False))
    return Group(*parts)


def _driver_place(handle: Mapping[str, Any]) -> str:
    """Return where a driver's log is on its machine, or what a cluster calls the driver."""
    if "submission_id" in handle:
        return f"spark     {handle['submission_id']} on {handle.get('master')}"
    return f"log       {Path(str(handle.get('directory'))) / 'driver.log'}"


def copy_table(progress: Mapping[str, Any]) -> RenderableType:
    """Return how far a copy is, table by table; ``progress`` is ``Snapshots.progress``."""
    table = Table(box=None, pad_edge=False)
    for title in ("\ncopying", "\nchunks", "\nrows", "\nbytes", "\nleft"):
        table.add_column(title, overflow="fold", justify="left" if "copying" in title else "right")
    everything = {"all tables": {**progress, "rows_estimate": None}}
    tables = progress["tables"]
    for name, copied in {**tables, **(everything if len(tables) > 1 else {})}.items():
        table.add_row(
            name,
            f"{copied['chunks_done']:,}/{copied['chunks']:,}",
            copied_rows(copied),
            size_text(copied["bytes"]),
            duration_text(copied["eta_s"]),
        )
    limits = ", ".join(f"{name} {value:,}" for name, value in progress["limits"].items())
    pace = progress["rows_per_s"]
    shown = [f"{pace:,} rows/s"] * (pace is not None) + [f"limited by {limits}"] * bool(limits)
    return Group(table, *([Text("\n" + ", ".join(shown))] if shown else []))


def copied_rows(copied: Mapping[str, Any]) -> str:
    """Return a table's rows, of about how many while there are more."""
    is_done = copied["chunks_done"] >= copied["chunks"]
    estimate = None if is_done else copied.get("rows_estimate")
    return f"{copied['rows']:,}" + (f" of ~{estimate:,}" if estimate else "")


def size_text(size: float) -> str:
    """Return bytes as people read them."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


def findings_table(findings: Iterable[Finding]) -> RenderableType:
    """Return the preflight's findings."""
    table = new_table("check", "verdict", "finding")
    for finding in findings:
        table.add_row(finding.check, coloured(finding.verdict), finding.message)
    return table


def _named(name: str, value: str) -> Text:
    return Text(f"\n{name:<9} {value}", overflow="fold")


def _entries(title: str, entries: Mapping[str, object], keys: Sequence[str]) -> RenderableType:
    table = new_table(f"\n{title}", *(f"\n{key.removesuffix('_ms')}" for key in keys))
    for name, entry in entries.items():
        table.add_row(name, *(_cell(key, getattr(entry, key)) for key in keys))
    return table


def _tables(tables: Mapping[str, TableCounts]) -> RenderableType:
    table = Table(box=None, pad_edge=False)
    for column in ("\ntable", "\nevents"):
        table.add_column(column)
    for name, entry in sorted(tables.items()):
        counts = sorted(entry.events.items())
        table.add_row(name, "  ".join(f"{op} {count:,}" for op, count in counts))
    return table


def _processors(processors: Mapping[str, ProcessorCounts]) -> RenderableType:
    table = new_table("\nprocessor", "\nin", "\nout", "\nerrors", "\na batch", "\ncounts")
    for name, entry in processors.items():
        calls = sum(entry.latency.counts)
        table.add_row(
            name,
            *(f"{count:,}" for count in (entry.events_in, entry.events_out, entry.errors)),
            duration_text(entry.latency.sum_s / calls if calls else None),
            "  ".join(f"{what} {count:,}" for what, count in sorted(entry.counts.items())),
        )
    return table


def _dead_letters(name: str, dlq: DeadLetterCounts) -> str:
    most = f" of {dlq.max_entries:,}" if dlq.max_entries else ""
    lost = dlq.evicted + dlq.rejected
    text = f"{dlq.entries or 0:,}{most} entries" + (f", {lost:,} lost" if lost else "")
    return f"{text}; deltaforge dlq list {name}" if dlq.entries else text


def _archive(archive: ArchiveProgress) -> str:
    text = f"{archive.rows:,} changes, {decimal(archive.bytes)}"
    if archive.lag_ms is not None:
        text += f", the oldest that waits is {duration_text(archive.lag_ms / 1000)} old"
    if archive.holes:
        text += f", {archive.holes:,} holes"
    return text if archive.reason is None else f"{text}; not written now: {archive.reason}"


def _cell(key: str, value: Any) -> str:
    if key == "lag_ms":
        return duration_text(None if value is None else value / 1000)
    if key == "bytes" and isinstance(value, int):
        return decimal(value)
    return f"{value:,}" if isinstance(value, int) else str(value or "")


def duration_text(seconds: float | None, suffix: str = "") -> str:
    """Return a duration in the largest unit that it has two of."""
    if seconds is None:
        return ""
    for unit_s, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}{suffix}"
    return f"{seconds:.1f} s{suffix}" if seconds >= 1 else f"{seconds * 1000:.0f} ms{suffix}"
