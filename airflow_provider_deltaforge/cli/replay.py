"""``deltaforge dlq replay``: send dead letters to the sinks that miss them."""

import json
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, TypeVar

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from airflow_provider_deltaforge.cli.exit_codes import FAILED
from airflow_provider_deltaforge.cli.options import (
    DEFAULT_STORE,
    NUMBER_MAX,
    JsonOption,
    NameArgument,
    Pauses,
    StoreOption,
    backend_of,
    err,
    opened,
    out,
    owner_token,
)
from airflow_provider_deltaforge.cli.views import new_table
from airflow_provider_deltaforge.control import replays
from airflow_provider_deltaforge.control.starting import comes_back
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.engine.base.retry import retry_until
from airflow_provider_deltaforge.errors import FencedError, RetryableError, SpecError
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.dead_letters import Damaged, DeadLetterFilter
from airflow_provider_deltaforge.storage.records.requests import Overtaken, Replay, new_ticket
from airflow_provider_deltaforge.telemetry.redaction import redacted

Result = TypeVar("Result")

_POLL_S = 0.3
_LONGEST_WAIT_S = 2.0
_COUNTS = ("sent", "refused", "dropped", "overtaken", "behind", "away", "unfit")
_STAY = {
    "refused": "refused again",
    "overtaken": "with newer events in the sink; --overtaken send or drop",
    "behind": "behind an earlier entry of their row that stays",
    "away": "whose optional sink is away, or still to be caught up",
    "unfit": "that cannot be sent again; --dry-run says why",
}
_AWAY = (
    "{name} is {status}: its driver sends them once its supervisor has started it again. If nobody "
    "does, start it (its DAG, or `deltaforge run`), or run `deltaforge stop {name}`: then this "
    "command sends them itself"
)
_CTRL_C = "withdrawn with Ctrl-C"
_WITHDRAWING = (
    "the replay is withdrawn as soon as the state store is back; Ctrl-C again does not wait"
)
_LEFT = (
    "replay {ticket} stays asked for: `deltaforge dlq replay {name} --withdraw {ticket}` withdraws "
    "it once the state store is back"
)


def replay(  # noqa: PLR0917 - a command's options
    context: typer.Context,
    name: NameArgument,
    store: StoreOption = DEFAULT_STORE,
    seq: Annotated[int | None, typer.Option(min=0, max=NUMBER_MAX, help="Only this entry.")] = None,
    first: Annotated[
        int | None, typer.Option(min=0, max=NUMBER_MAX, help="From this sequence number on.")
    ] = None,
    last: Annotated[
        int | None, typer.Option(min=0, max=NUMBER_MAX, help="Up to this sequence number.")
    ] = None,
    sink: Annotated[str | None, typer.Option(help="Only what this sink refused.")] = None,
    processor: Annotated[str | None, typer.Option(help="Only what this processor refused.")] = None,
    kind: Annotated[str | None, typer.Option(help="Only errors of this kind.")] = None,
    table: Annotated[str | None, typer.Option(help="Only events of this table.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every entry.")] = False,
    overtaken: Annotated[
        Overtaken,
        typer.Option(
            help="Entries whose row has newer events in the sink: skip, send all the same (an old "
            "state is then the last one), or drop."
        ),
    ] = "skip",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would become of each entry.")
    ] = False,
    withdraw: Annotated[
        str | None, typer.Option(help="Withdraw the replay of this ticket; send nothing.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Send events that were set aside to the sinks that miss them, row by row in order.

    The pipeline's driver does it, between two batches; without one, this command does. What is
    delivered leaves the queue. Ctrl-C withdraws the rest. Exits with 1 if an entry that was meant
    could not be sent, and was not just overtaken.
    """
    if seq is not None and (first is not None or last is not None):
        raise SpecError("--seq: give one number, or --first and --last: not both")
    within = (first, last) if seq is None else (seq, seq)
    which = DeadLetterFilter(sink, processor, kind, table, *within)
    if withdraw is not None:
        if which != DeadLetterFilter() or everything or dry_run:
            raise SpecError("--withdraw: takes a ticket, and stands alone")
        _withdraw(store, name, withdraw, as_json=as_json)
        return
    if which == DeadLetterFilter() and not everything:
        raise SpecError("say which entries: --seq, --first, --last, --sink, … or --all")
    with opened(store) as state:
        # Without the events, which may be large.
        meant = [_row(entry) for entry in replays.foresee(state, name, which, overtaken)]
        if dry_run:
            _show(meant, as_json=as_json)
            return
        command = _ReplayCommand(state, store, name, len(meant), Pauses.of(context))
        result = command.run(which, overtaken)
    _print_result(result, as_json=as_json)
    stays = result.refused + result.behind + result.away + result.unfit
    if result.state != "done" or stays:
        raise typer.Exit(FAILED)


def _withdraw(store: str, name: str, ticket: str, *, as_json: bool) -> None:
    with opened(store) as state:
        known = replays.replay(state, name, ticket)
        if known is None or not known.settled:
            replays.cancel(state, name, ticket, "withdrawn with --withdraw")
            done = json.dumps({"state": "withdrawn"})
            typer.echo(done if as_json else "withdrawn; what was sent stays")
            return
    _print_result(known, as_json=as_json)
    raise typer.Exit(FAILED)


class _ReplayCommand:
    """One call of the command."""

    def __init__(self, state: Store, dsn: str, name: str, meant: int, pauses: Pauses) -> None:
        self._state, self._dsn, self._name, self._meant = state, dsn, name, meant
        self._pauses = pauses
        self._ending = threading.Event()
        self._failure: Exception | None = None
        self._working: threading.Thread | None = None
        self._shown_state = ""

    def run(self, which: DeadLetterFilter, overtaken: Overtaken) -> Replay:
        """Ask for the replay, see to it that somebody serves it, and wait."""
        ticket = self._ask(which, overtaken)
        try:
            self._retry(partial(self._serve, ticket))
            return self._wait(ticket)
        except BaseException as error:
            self._ending.set()
            why = _CTRL_C if isinstance(error, KeyboardInterrupt) else "given up"
            self._withdraw(ticket, why)
            if self._working is not None:
                self._working.join()
            raise

    def _ask(self, which: DeadLetterFilter, overtaken: Overtaken) -> str:
        """Ask for it; where the answer is lost, nobody knows whether it is asked for already."""
        ticket = new_ticket()
        whose = (overtaken, owner_token(), ticket)
        try:
            self._retry(partial(replays.request, self._state, self._name, which, *whose))
        except KeyboardInterrupt:
            self._withdraw(ticket, _CTRL_C)
            raise
        return ticket

    def _withdraw(self, ticket: str, why: str) -> None:
        """Withdraw the replay, however long the store is away: else it would be served then."""
        is_shown = False

        def tell(error: BaseException | None) -> None:
            nonlocal is_shown
            _say("state store", error)
            if not is_shown:
                err.print(_WITHDRAWING, highlight=False)
            is_shown = True

        withdraw = partial(replays.cancel, self._state, self._name, ticket, why)
        try:
            retry_until(withdraw, tell, lambda: False, time.sleep, _LONGEST_WAIT_S)
        except BaseException:
            err.print(_LEFT.format(name=self._name, ticket=ticket), highlight=False)
            raise

    def _serve(self, ticket: str) -> None:
        """Leave it to a driver, or work here if there is none."""
        if self._working is not None and self._working.is_alive():
            return
        present = status(self._state, self._name, backend_of(self._dsn))
        if present.desired == "paused":
            state_text = f"{self._name} is paused: the replay waits until it is resumed"
        elif present.alive:
            state_text = f"the driver of {self._name}, which is {present.status}, sends them"
        elif comes_back(present):
            state_text = _AWAY.format(name=self._name, status=present.status)
        else:
            state_text = f"no driver of {self._name} runs: sending them from here"
            work = partial(self._work, ticket)
            self._working = threading.Thread(target=work, name="replay", daemon=True)
            self._working.start()
        if state_text != self._shown_state:
            err.print(state_text, highlight=False)
        self._shown_state = state_text

    def _work(self, ticket: str) -> None:
        from airflow_provider_deltaforge.engine.replay.requests import replay_here

        location = StoreLocation.from_dsn(self._dsn)
        try:
            replay_here(self._name, location, ticket, _say, self._ending)
        except (FencedError, RetryableError) as error:
            # Another driver has it, or the store is away: whoever waits looks again.
            err.print(redacted(str(error)), highlight=False)
        except Exception as error:  # noqa: BLE001 - raised again where the command waits
            self._failure = error

    def _wait(self, ticket: str) -> Replay:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        looked_at = time.monotonic()
        with Progress(*columns, console=err) as bars:
            bar = bars.add_task("dead letters", total=self._meant)
            while True:
                result = self._retry(partial(replays.replay, self._state, self._name, ticket))
                if result is not None:
                    bars.update(bar, completed=sum(getattr(result, what) for what in _COUNTS))
                    if result.settled:
                        if self._working is not None:
                            self._working.join()  # Until it has taken the request away, too.
                        return result
                if self._failure is not None:
                    raise self._failure
                if time.monotonic() - looked_at > self._pauses.look_s:
                    self._retry(partial(self._serve, ticket))
                    looked_at = time.monotonic()
                time.sleep(_POLL_S)

    def _retry(self, call: Callable[[], Result]) -> Result:
        """Repeat a call to the store until it works; what was asked for stands in it meanwhile."""
        return retry_until(
            call, partial(_say, "state store"), self._ending.is_set, self._ending.wait
        )


def _say(name: str, error: BaseException | None) -> None:
    state_text = "goes on" if error is None else redacted(str(error))
    err.print(f"{name}: {state_text}", highlight=False)


def _print_result(result: Replay, *, as_json: bool) -> None:
    counts = {what: getattr(result, what) for what in _COUNTS}
    if as_json:
        typer.echo(json.dumps({"state": result.state, "reason": result.reason, **counts}))
        return
    dropped = f", {result.dropped} dropped" if result.dropped else ""
    out.print(f"{result.state}: {result.sent} sent{dropped}")
    if result.reason:
        out.print(result.reason, highlight=False)
    for what, words in _STAY.items():
        if counts[what]:
            out.print(f"{counts[what]} stay, {words}", highlight=False)


def _show(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    elif not rows:
        out.print("No entry fits.")
    else:
        table = new_table("seq", "table", "op", "refused by", "attempts", "then", "to", "why")
        for row in rows:
            table.add_row(*(str(value) for value in row.values()))
        out.print(table)


def _row(preview: replays.ReplayPreview) -> dict[str, Any]:
    dead_letter, meta = preview.dead_letter, preview.dead_letter.meta
    who = f"sink {meta.sink_id}" if meta.sink_id else f"processor {meta.processor_id}"
    if isinstance(dead_letter, Damaged):
        who = "unknown"
    return {
        "seq": dead_letter.seq,
        "table": dead_letter.table,
        "op": str(dead_letter.event.get("op", "")),
        "refused_by": who,
        "attempts": meta.attempts,
        "action": preview.action,
        "sinks": ", ".join(preview.sinks),
        "why": preview.why,
    }
