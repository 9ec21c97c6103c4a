"""``deltaforge verify``: compare a pipeline's tables with what its sinks hold."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from airflow_provider_deltaforge.cli.exit_codes import DOCUMENT, FAILED, RETRY
from airflow_provider_deltaforge.cli.options import (
    DEFAULT_STORE,
    JsonOption,
    NameArgument,
    StoreOption,
    err,
    opened,
    out,
    owner_token,
    print_answer,
)
from airflow_provider_deltaforge.cli.views import new_table
from airflow_provider_deltaforge.control import verification
from airflow_provider_deltaforge.control.verification import VerificationRun, answer, in_words
from airflow_provider_deltaforge.engine.verify.options import VerifyOptions
from airflow_provider_deltaforge.errors import RetryableError, SpecError
from airflow_provider_deltaforge.events.table_names import named_or_all
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.records.verifications import (
    KINDS,
    TableComparison,
    Verification,
)

_DRAW_S = 0.2


def verify(
    name: NameArgument,
    store: StoreOption = DEFAULT_STORE,
    *,
    tables: Annotated[
        str | None,
        typer.Option(help="Only these: db.table,db.other. Default: all captured tables."),
    ] = None,
    sinks: Annotated[
        str | None, typer.Option(help="Only these sinks, by id. Default: all.")
    ] = None,
    wait: Annotated[
        float,
        typer.Option(min=0, help="Seconds a sink's checkpoint may take to reach the log's end."),
    ] = 60.0,
    examples: Annotated[int, typer.Option(min=0, help="Keys shown of each kind.")] = 10,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="Have the running stream send again what differs; look again."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare the source's tables with what the sinks hold, beside the running stream.

    Exit code 0: every row is equal. 1: something differs. 3: nothing differs, but something could
    not be compared: a sink that cannot be read back, a table without a key, rows that never rested.
    """
    options = VerifyOptions(
        named_or_all("--tables", tables),
        named_or_all("--sinks", sinks),
        wait_s=wait,
        examples=examples,
    )
    with opened(store) as state:
        found = _verified(state, name, options, draws=not as_json)
        if repair and found.verdict == "different":
            if not as_json:
                out.print(_view(found))
            _repair(state, name, found)
            found = _verified(state, name, options, draws=not as_json)
    print_answer(answer(found), _view(found), as_json=as_json)
    if found.state != "finished":
        err.print(f"the verification {in_words(found)}", highlight=False)
        codes = {SpecError.error_class: DOCUMENT, RetryableError.error_class: RETRY}
        is_cancelled = found.state == "cancelled"
        raise typer.Exit(RETRY if is_cancelled else codes.get(found.error_class or "", FAILED))
    if found.verdict != "equal":
        raise typer.Exit(FAILED if found.verdict == "different" else RETRY)


def _verified(state: Store, name: str, options: VerifyOptions, *, draws: bool) -> Verification:
    run = VerificationRun(state, name, options, owner_token())
    run.begin()
    with _cancelling(run.cancel), _drawn(run) if draws else nullcontext():
        return run.run()


def _repair(state: Store, name: str, found: Verification) -> None:
    """Have what differs sent again."""
    over = threading.Event()
    with _cancelling(over.set), err.status(f"{found.differences} rows are sent again"):
        asked = verification.repair(state, name, found, owner_token(), over.is_set)
    err.print(f"{asked.rows} rows were sent again; looking again", highlight=False)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(rich_help_panel="Running pipelines")(verify)


@contextmanager
def _cancelling(cancel: Callable[[], object]) -> Iterator[None]:
    """End what is under way, and keep that it was cancelled, at SIGINT and SIGTERM."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    former = {number: signal.signal(number, lambda *_: cancel()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


@contextmanager
def _drawn(run: VerificationRun) -> Iterator[None]:
    """Draw how far it is, from a thread of its own."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} chunks, {task.fields[rows]:,} rows"),
    )
    over = threading.Event()
    with Progress(*columns, console=err, transient=True) as bars:
        task = bars.add_task("planning", total=None, rows=0)

        def draw() -> None:
            while not over.wait(_DRAW_S):
                now = run.current()
                again = f", look {now.rounds}" if now.rounds else ""
                bars.update(
                    task,
                    description=f"{now.phase}{again}",
                    total=now.total or None,
                    completed=now.done,
                    rows=now.rows,
                )

        drawer = threading.Thread(target=draw, daemon=True)
        drawer.start()
        try:
            yield
        finally:
            over.set()
            drawer.join()


def _view(found: Verification) -> RenderableType:
    grid = new_table("sink", "table", "rows", *KINDS, "result")
    parts: list[RenderableType] = [grid]
    for sink in found.sinks:
        if sink.reason is not None:
            grid.add_row(sink.sink, "", "", *("" for _ in KINDS), Text("not compared"))
            parts.append(Text(f"\n{sink.sink}: {sink.reason}"))
        for table in sink.tables:
            counts = [f"{getattr(table, kind):,}" for kind in KINDS]
            whole = table.reason is None
            grid.add_row(
                sink.sink,
                table.table,
                f"{table.rows:,}" if whole else "",
                *(counts if whole else ("" for _ in KINDS)),
                _word(table),
            )
        parts += [Text(f"\n{sink.sink}: {note}") for note in sink.notes]
        parts += [
            Text(f"\n{sink.sink}, {table.table}: {table.reason}")
            for table in sink.tables
            if table.reason is not None
        ]
    parts += _examples(found)
    return Group(*parts)


def _word(table: TableComparison) -> Text:
    if table.reason is not None:
        return Text("not compared")
    if table.differences:
        return Text("different", style="bold red")
    return Text("inconclusive") if table.inconclusive else Text("equal", style="green")


def _examples(found: Verification) -> Iterator[RenderableType]:
    grid = Table(box=None, pad_edge=False)
    for title in ("sink", "table", "kind", "keys"):
        grid.add_column(title, overflow="fold")
    for sink in found.sinks:
        for table in sink.tables:
            for kind, keys in sorted(table.examples.items()):
                more = getattr(table, kind) - len(keys)
                texts = [*map(_printable, keys), *([f"and {more:,} more"] if more > 0 else [])]
                grid.add_row(sink.sink, table.table, kind, Text("  ".join(texts)))
    if grid.row_count:
        yield Text("")
        yield grid


def _printable(key: str) -> str:
    """Return a key without what a terminal would obey: anybody may have written it."""
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in key)
