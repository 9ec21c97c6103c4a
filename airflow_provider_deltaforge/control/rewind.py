"""The log of a source, delivered once more to sinks: where from, and asking for it."""

import json
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import Any

from airflow_provider_deltaforge.control.pipelines import existing
from airflow_provider_deltaforge.engine.archive.reader import Archive
from airflow_provider_deltaforge.errors import DeltaForgeError, PositionLostError, SpecError
from airflow_provider_deltaforge.events.change import Position
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

_TIME = re.compile(r"\d{4}-\d\d-\d\d([T ].*)?")
_AGO = re.compile(r"((?:\d+\s*[a-z]+\s*)+)ago", re.IGNORECASE)
_PART = re.compile(r"(\d+)\s*([a-z]+)\s*", re.IGNORECASE)
_SECONDS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", "days"), 86_400),
    **dict.fromkeys(("w", "week", "weeks"), 604_800),
}
_AHEAD_S = 2.0


@dataclass(frozen=True, slots=True)
class RewindPlan:
    """What a rewind would do.

    Attributes:
        to: the log is delivered again from behind here.
        at_ms: the time that was asked for, ms since the epoch; None where a place was named.
        sinks: where each sink stands that is given it again.
        tables: patterns of the tables that are meant; none: all.
        log_bytes: of the log from there to its end; None where the source cannot tell.
        log_files: of them; None where the log has no files.
        is_archived: the source has not all of it any more; the archive has it.
    """

    to: Position
    at_ms: int | None
    sinks: Mapping[str, Position]
    tables: tuple[str, ...] = ()
    log_bytes: int | None = None
    log_files: int | None = None
    is_archived: bool = False

    @property
    def words(self) -> str:
        """Say what it does, in a sentence."""
        tables = f" of {', '.join(self.tables)}" if self.tables else ""
        since = "" if self.at_ms is None else f", committed after {shown_time(self.at_ms)},"
        size = "" if self.log_bytes is None else f", about {self.log_bytes / (1 << 20):,.1f} MiB"
        files = "" if self.log_files is None else f" in {self.log_files} file(s)"
        log = f"; that is{size[1:]} of log{files}" if size else ""
        archived = ", from the archive" if self.is_archived else ""
        until = " until it is where it stood; from there on everything" if self.tables else ""
        return (
            f"{', '.join(self.sinks)}: every change{tables} behind {dict(self.to)}{since} is "
            f"delivered again{archived}{until}{log}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON-able data."""
        return {**asdict(self), "to": dict(self.to), "sinks": {**self.sinks}}


@dataclass(frozen=True, slots=True)
class RewindWish:
    """What somebody asks for.

    Attributes:
        to: a place of the log, or a time.
        sink: the one sink that is meant; None: all.
        tables: patterns; none: all tables.
    """

    to: str
    sink: str | None = None
    tables: Sequence[str] = field(default=())


def plan(store: Store, name: str, wish: RewindWish) -> RewindPlan:
    """Find the place in the source's log, and return what would be done; nothing is changed.

    Raises:
        SpecError: there is no such pipeline, sink, place or time.
        PositionLostError: the source does not have the log from there on.
        RetryableError, AccessError: the source could not be asked.
    """
    existing(store, name)
    pipeline = load(Control(store, name).document() or "")
    source = pipeline.spec.source
    known = Checkpoints(store, name, source.id).load()
    ids = [sink.id for sink in pipeline.spec.sinks]
    if wish.sink is not None and wish.sink not in ids:
        raise SpecError(f"pipeline {name!r} has no sink {wish.sink!r}; it has {', '.join(ids)}")
    if wish.tables:
        _check_tables(store, pipeline, wish.tables)
    chosen = [sink_id for sink_id in ids if wish.sink in (None, sink_id)]
    stands = {sink_id: known[sink_id] for sink_id in chosen if sink_id in known}
    if not stands:
        raise SpecError(f"pipeline {name!r} has delivered nothing of the log yet")
    at_ms = time_in(wish.to)
    is_archived = False
    try:
        to = _place(source, wish.to.strip(), at_ms)
    except PositionLostError as lost:
        to = _archived_place(pipeline, wish.to.strip(), at_ms, lost)
        is_archived = True
    behind = {sink_id: at for sink_id, at in stands.items() if _is_behind(source, at, to)}
    if not behind:
        furthest = next(iter(stands.values()))
        raise SpecError(
            f"--to: {dict(to)} does not lie before {dict(furthest)}, where the sink stands: "
            "nothing behind it was delivered yet"
        )
    tables = tuple(wish.tables)
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
    """Return the place in the archive of what the source has no more.

    Raises:
        PositionLostError: the archive does not have it either, or there is none.
    """
    if pipeline.spec.archive is None or (at_ms is None and not text.startswith("{")):
        raise lost
    archive = Archive.of(pipeline)
    try:
        to: Position = json.loads(text) if at_ms is None else archive.position_at(at_ms)
        archive.open(to).close()
    except PositionLostError as error:
        raise PositionLostError(f"{lost}; {error}") from error
    return to


def request(store: Store, name: str, planned: RewindPlan, by: str) -> None:
    """Ask a pipeline to do it: one that runs begins within seconds, else the next start does."""
    gaps = Gaps(store, name)
    store.transact(
        [gaps.rewind(sink_id, planned.to, planned.tables, by) for sink_id in planned.sinks]
    )


def time_in(text: str) -> int | None:
    """Return the time that a text names, ms since the epoch; None if it names none.

    Args:
        text: ISO 8601, in UTC where it names no zone, or how long ago: ``90m ago``.

    Raises:
        SpecError: it looks like a time and is none, or lies in the future.
    """
    text = text.strip()
    if (ago := _AGO.fullmatch(text)) is not None:
        parts = _PART.findall(ago[1])
        unknown = [unit for _, unit in parts if unit.lower() not in _SECONDS]
        if unknown:
            raise SpecError(f"--to: {unknown[0]!r} is no unit of time; write s, m, h, d or w")
        seconds = sum(int(count) * _SECONDS[unit.lower()] for count, unit in parts)
        return int((time.time() - seconds) * 1000)
    if not _TIME.fullmatch(text):
        return None
    try:
        found = datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text))
    except ValueError as error:
        raise SpecError(f"--to: {text!r} is no time of ISO 8601: {error}") from error
    at_s = (found if found.tzinfo is not None else found.replace(tzinfo=timezone.utc)).timestamp()
    if at_s > time.time() + _AHEAD_S:
        raise SpecError(f"--to: {shown_time(int(at_s * 1000))} lies in the future")
    return int(at_s * 1000)


def shown_time(at_ms: int) -> str:
    """Return a time for people, in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, timezone.utc).isoformat(" ", "milliseconds")


def _check_tables(store: Store, pipeline: Pipeline, tables: Sequence[str]) -> None:
    """Refuse patterns that fit no table that is, or was, captured."""
    check_patterns(list(tables), "--tables")
    source = pipeline.spec.source
    registry = Registry(store, source.id, pipeline.metadata.tenant)
    known = [version.schema for version in registry.all()]
    with suppress(DeltaForgeError):  # It cannot list them; the log may hold tables that are gone.
        known += source.describe()
    for pattern in tables:
        matcher = TableMatcher((pattern,))
        if not any(matcher.matches(table.schema or table.db, table.table) for table in known):
            names = ", ".join(sorted({table.full_name for table in known})) or "none"
            raise SpecError(f"--tables: {pattern!r} fits no captured table (known: {names})")


def _is_behind(source: Source, at: Position, to: Position) -> bool:
    """Return whether a sink at a position was given something behind another."""
    return source.covers(at, to) and not source.covers(to, at)


def _files(source: Source, to: Position) -> int | None:
    """Return how many files of the log hold what lies behind a place."""
    try:
        ends = [str(place.get("file") or "").rpartition(".")[2] for place in (to, source.head())]
    except DeltaForgeError:
        return None
    numbers = [int(end) for end in ends if end.isdigit()]
    return numbers[1] - numbers[0] + 1 if len(numbers) == len(ends) else None
