"""Deliver the log of a source again: find the place to begin at, and ask the pipeline for it."""

import json
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import Any

from pydantic import TypeAdapter, ValidationError

from airflow_provider_deltaforge.control.pipelines import existing
from airflow_provider_deltaforge.errors import DeltaForgeError, PositionLostError, SpecError
from airflow_provider_deltaforge.events.position import Position
from airflow_provider_deltaforge.schemas.registry import Registry
from airflow_provider_deltaforge.sources.contract import Source
from airflow_provider_deltaforge.sources.shared.log_places import FindsLogPlaces
from airflow_provider_deltaforge.spec.document import Pipeline
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.spec.patterns import TableMatcher, check_patterns
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.control import Control
from airflow_provider_deltaforge.storage.records.gaps import Gaps
from airflow_provider_deltaforge.storage.records.rewinds import Rewinds

_TIME = re.compile(r"\d{4}-\d\d-\d\d([T ].*)?")
_AGO = re.compile(r"((?:\d+\s*[a-z]+\s*)+)ago", re.IGNORECASE)
_DIGITS = 15
_PART = re.compile(r"(\d+)\s*([a-z]+)\s*", re.IGNORECASE)
_SECONDS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", "days"), 86_400),
    **dict.fromkeys(("w", "week", "weeks"), 604_800),
}
_AHEAD_S = 2.0
"""How much further than ours the clock of a source may be."""
_ISO_8601 = TypeAdapter(datetime)
_HOURS_ONLY = re.compile(r"(:\d\d(?:[.,]\d+)?[+-]\d\d)$")
"""A zone without minutes, which is ISO 8601, and which the parser does not know."""


@dataclass(frozen=True, slots=True)
class RewindPlan:
    """What a rewind would do.

    Attributes:
        to: everything behind this position is delivered again.
        at_ms: the time that was asked for, ms since the epoch; None if a position was.
        sinks: the present position of each sink that gets the log again.
        tables: patterns of the tables whose changes are delivered again; empty: all.
        log_bytes: size of the log from there to its end; None if the source does not know it.
        log_files: in how many files that is; None if the log has no files.
        is_archived: the archive has all of it, and the source no longer does.
    """

    to: Position
    at_ms: int | None
    sinks: Mapping[str, Position]
    tables: tuple[str, ...] = ()
    log_bytes: int | None = None
    log_files: int | None = None
    is_archived: bool = False

    @property
    def summary(self) -> str:
        """Return what it would do, in one sentence for people."""
        tables = f" of {', '.join(self.tables)}" if self.tables else ""
        since = "" if self.at_ms is None else f", committed after {shown_time(self.at_ms)},"
        archived = ", from the archive" if self.is_archived else ""
        until = log = ""
        if self.tables:
            until = " up to the sink's present position; behind that, changes of all tables are"
        if self.log_bytes is not None:
            files = "" if self.log_files is None else f" in {self.log_files} file(s)"
            log = f" (about {self.log_bytes / (1 << 20):,.1f} MiB of log{files})"
        return (
            f"{', '.join(self.sinks)}: every change{tables} behind {dict(self.to)}{since} is "
            f"delivered again{archived}{until}{log}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON-able data."""
        return {**asdict(self), "to": dict(self.to), "sinks": {**self.sinks}}


@dataclass(frozen=True, slots=True)
class RewindSelection:
    """What to deliver again, and to which sink.

    Attributes:
        to: a time, or a place in the log, as a person writes it.
        sink: id of the only sink that gets it; None: every sink.
        tables: patterns of the only tables whose changes are delivered; empty: all.
    """

    to: str
    sink: str | None = None
    tables: Sequence[str] = field(default=())


def plan(
    store: Store,
    name: str,
    selection: RewindSelection,
    environment: Mapping[str, str] | None = None,
) -> RewindPlan:
    """Find the place in the log, and return what a rewind would do; nothing is changed.

    Args:
        store: the state store.
        name: the pipeline.
        selection: what to deliver again.
        environment: the values of the document's variables; this process's own if None.

    Raises:
        SpecError: there is no such pipeline, sink, place or time.
        PositionLostError: neither the source nor an archive has the log from there on.
        RetryableError, AccessError: the source cannot be read.
    """
    existing(store, name)
    pipeline = load(Control(store, name).document() or "", environment)
    source = pipeline.spec.source
    known = Checkpoints(store, name, source.id).load()
    ids = [sink.id for sink in pipeline.spec.sinks]
    if selection.sink is not None and selection.sink not in ids:
        raise SpecError(
            f"pipeline {name!r} has no sink {selection.sink!r}; it has {', '.join(ids)}"
        )
    if selection.tables:
        _check_tables(store, pipeline, selection.tables)
    chosen = [sink_id for sink_id in ids if selection.sink in (None, sink_id)]
    positions = {sink_id: known[sink_id] for sink_id in chosen if sink_id in known}
    if not positions:
        raise SpecError(f"pipeline {name!r} has delivered nothing of the log yet")
    at_ms = time_in(selection.to)
    is_archived = False
    try:
        to = _place(source, selection.to.strip(), at_ms)
    except PositionLostError as lost:
        to = _archived_place(pipeline, selection.to.strip(), at_ms, lost)
        is_archived = True
    behind = {sink_id: at for sink_id, at in positions.items() if _is_behind(source, at, to)}
    if not behind:
        furthest = next(iter(positions.values()))
        raise SpecError(
            f"to: {dict(to)} does not lie before {dict(furthest)}, the position of the sink: "
            "nothing behind it was delivered yet"
        )
    tables = tuple(selection.tables)
    if is_archived:
        return RewindPlan(to, at_ms, behind, tables, is_archived=True)
    retained = source.log_retention(to, None)
    size = None if retained is None else retained.behind_bytes
    return RewindPlan(to, at_ms, behind, tables, size, _files(source, to))


def _place(source: Source, text: str, at_ms: int | None) -> Position:
    """Return the place in the source's own log."""
    places: object = source
    if not isinstance(places, FindsLogPlaces):
        raise SpecError(f"the log of a source of type {source.connector} cannot be read again")
    to = places.place_at(text) if at_ms is None else places.place_at_time(at_ms)
    source.reach(to)
    return to


def _archived_place(
    pipeline: Pipeline, text: str, at_ms: int | None, lost: PositionLostError
) -> Position:
    """Return the place in the archive, of a log that the source no longer has.

    Raises:
        PositionLostError: the archive does not have it either, or there is none.
    """
    if pipeline.spec.archive is None or (at_ms is None and not text.startswith("{")):
        raise lost
    from airflow_provider_deltaforge.engine.archive.reader import Archive  # Of DAG files: no Arrow.

    archive = Archive.of(pipeline)
    try:
        to: Position = json.loads(text) if at_ms is None else archive.position_at(at_ms)
        archive.open(to).close()
    except PositionLostError as error:
        raise PositionLostError(f"{lost}; {error}") from error
    return to


def request(store: Store, name: str, planned: RewindPlan, by: str) -> None:
    """Ask a pipeline to do it: a running one begins within seconds, a stopped one at its start."""
    gaps = Gaps(store, name)
    store.transact(
        [gaps.rewind(sink_id, planned.to, planned.tables, by) for sink_id in planned.sinks]
    )


def is_taken(store: Store, name: str, by: str) -> bool:
    """Return whether a request waits, or its rewind runs or is done."""
    wishes = Gaps(store, name).wishes()
    if any(wish.wanted == "rewind" and wish.by == by for wish in wishes):
        return True
    rewinds = Rewinds(store, name).all().values()
    return any(rewind.by == by and rewind.state in ("running", "done") for rewind in rewinds)


def withdraw(store: Store, name: str, by: str) -> None:
    """Take back what was requested and has not begun.

    Args:
        store: the state store.
        name: the pipeline.
        by: who requested it, or how that begins.
    """
    gaps = Gaps(store, name)
    mine = [wish for wish in gaps.wishes() if wish.wanted == "rewind" and wish.by.startswith(by)]
    store.transact([write for wish in mine for write in gaps.granted(wish)])


def time_in(text: str) -> int | None:
    """Return a time that a person writes, in ms since the epoch; None if the text is no time.

    Args:
        text: ISO 8601, in UTC if it names no zone, or how long ago: ``90m ago``.

    Raises:
        SpecError: it looks like a time and is not one, or lies before 1970 or in the future.
    """
    text = text.strip()
    if (ago := _AGO.fullmatch(text)) is not None:
        parts = _PART.findall(ago[1])
        unknown = [unit for _, unit in parts if unit.lower() not in _SECONDS]
        if unknown:
            raise SpecError(f"to: {unknown[0]!r} is no unit of time; write s, m, h, d or w")
        # Of more digits any number lies before 1970, and no clock can be asked for it.
        seconds = sum(int(count[:_DIGITS]) * _SECONDS[unit.lower()] for count, unit in parts)
        return _checked(text, time.time() - seconds)
    if not _TIME.fullmatch(text):
        return None
    try:
        at = _ISO_8601.validate_python(_HOURS_ONLY.sub(r"\1:00", text))
    except ValidationError as error:
        why = error.errors()[0]["msg"]
        raise SpecError(f"to: {text!r} is no time of ISO 8601: {why}") from error
    return _checked(text, (at if at.tzinfo else at.replace(tzinfo=timezone.utc)).timestamp())


def _checked(text: str, at_s: float) -> int:
    """Return a time in ms, if a log can have changes of it."""
    if at_s < 0:
        raise SpecError(f"to: {text!r} lies before 1970, where no log begins")
    if at_s > time.time() + _AHEAD_S:
        raise SpecError(f"to: {text!r} lies in the future")
    return int(at_s * 1000)


def shown_time(at_ms: int) -> str:
    """Return a time for people, in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, timezone.utc).isoformat(" ", "milliseconds")


def _check_tables(store: Store, pipeline: Pipeline, tables: Sequence[str]) -> None:
    """Refuse patterns that match no table that is or was captured."""
    check_patterns(list(tables), "tables")
    source = pipeline.spec.source
    registry = Registry(store, source.id, pipeline.metadata.tenant)
    known = [version.schema for version in registry.all()]
    with suppress(DeltaForgeError):  # The source is away; the registry has the tables of the log.
        known += source.describe()
    for pattern in tables:
        matcher = TableMatcher((pattern,))
        if not any(matcher.matches(table.schema or table.db, table.table) for table in known):
            names = ", ".join(sorted({table.full_name for table in known})) or "none"
            raise SpecError(f"tables: {pattern!r} matches no captured table (known: {names})")


def _is_behind(source: Source, at: Position, to: Position) -> bool:
    """Return whether a sink at position ``at`` was given changes behind ``to``."""
    return source.covers(at, to) and not source.covers(to, at)


def _files(source: Source, to: Position) -> int | None:
    """Return how many files of the log lie behind a place; None if it has no files."""
    try:
        ends = [str(place.get("file") or "").rpartition(".")[2] for place in (to, source.head())]
    except DeltaForgeError:
        return None
    numbers = [int(end) for end in ends if end.isdigit()]
    return numbers[1] - numbers[0] + 1 if len(numbers) == len(ends) else None
