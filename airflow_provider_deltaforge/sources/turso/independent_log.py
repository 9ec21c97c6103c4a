"""The table of changes as Turso's engine itself reads it: a second opinion about our own decoder.

The rows of the table are the log; their images are decoded by the engine's own function, by the
columns that each table has now.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from decimal import Decimal
from typing import Any

from airflow_provider_deltaforge.errors import DeltaForgeError, SpecError
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.sources.shared.independent_change import IndependentChange
from airflow_provider_deltaforge.sources.turso.capture import (
    CATALOG,
    COMMIT,
    DELETE,
    INSERT,
    UPDATE,
    Capture,
)
from airflow_provider_deltaforge.sources.turso.database import Database, quoted
from airflow_provider_deltaforge.sources.turso.modes import open_mode
from airflow_provider_deltaforge.sources.turso.open_file import OpenFile
from airflow_provider_deltaforge.sources.turso.polling import Growth
from airflow_provider_deltaforge.sources.turso.positions import FilePosition
from airflow_provider_deltaforge.sources.turso.shadows import Shadows
from airflow_provider_deltaforge.sources.turso.source import TursoSource
from airflow_provider_deltaforge.sources.turso.tables import DB

_OPS = {INSERT: "c", UPDATE: "u", DELETE: "d"}
_FEWER = "fewer columns"


def log_position(source: TursoSource, text: str) -> tuple[Position, Position]:
    """Return the place before the change of a number, and the beginning of the table of changes.

    Raises:
        SpecError: it is no number, or the file is not followed by its own capture.
    """
    with _captured(source) as (_, capture):
        first = capture.first_id()
    begin = FilePosition("native", max(0, first - 1)).as_json()
    if text.startswith("{"):
        try:
            return FilePosition.from_json(json.loads(text)).as_json(), begin
        except (ValueError, TypeError, AttributeError) as error:
            raise SpecError(f"--at: {text!r} is no position of a Turso file") from error
    if not (text.isascii() and text.isdigit()):
        raise SpecError(
            f"--at: {text!r} is no place of this file's log; write the number of a change "
            f"({source.cdc_table_name}.change_id), or the position that `deltaforge status` shows"
        )
    return FilePosition("native", max(0, int(text) - 1)).as_json(), begin


def place_at(source: TursoSource, text: str) -> Position:
    """Return the place behind the last transaction that ends before the change of a number.

    Raises:
        SpecError: it is neither a number nor a stored position, or the mode is polling.
        PositionLostError: the changes are not kept back to there.
    """
    with _kept(source) as log:
        if text.startswith("{"):
            try:
                place = FilePosition.from_json(json.loads(text))
            except (ValueError, TypeError, AttributeError) as error:
                raise SpecError(f"to: {text!r} is no position of a Turso file") from error
            log.check_kept(place)
            return place.as_json()
        if not (text.isascii() and text.isdigit()):
            raise SpecError(
                f"to: {text!r} is no place of this file's log; write a time "
                "(2026-11-23T10:00:00Z or '2h ago'), the number of a change "
                f"({source.cdc_table_name}.change_id), or a position that `deltaforge status NAME "
                "--json` shows"
            )
        return log.place_before(int(text)).as_json()


def place_at_time(source: TursoSource, at_ms: int) -> Position:
    """Return the last place such that all behind it was made later.

    Turso's own capture knows whole seconds: the whole second of a time lies behind the place.

    Raises:
        SpecError, PositionLostError: as ``place_at``.
    """
    with _kept(source) as log:
        at = at_ms // 1000 if isinstance(log, Capture) else at_ms
        return log.place_before(None, at).as_json()


@contextmanager
def _kept(source: TursoSource) -> Iterator[Capture | Shadows]:
    opened = open_mode(source)
    with closing(opened.database):
        log = opened.log
        if isinstance(log, Growth):
            raise SpecError(
                "source.cdc_mode: polling finds rows, and there is no log of their changes, so "
                "nothing can be delivered again. Copy the tables instead: deltaforge snapshot FILE "
                "--again"
            )
        opened.prepare()
        with opened.database.view():
            if isinstance(log, Capture):
                log.check()
            yield log


def independent_changes(
    source: TursoSource, after: Position, upto: Position
) -> Iterator[IndependentChange]:
    """Yield what the engine makes of changes of captured tables between two positions.

    Raises:
        SpecError: the file is not followed by its own capture.
    """
    begin, end = (FilePosition.from_json(place).change_id or 0 for place in (after, upto))
    columns: dict[str, Sequence[str]] = {}
    with _captured(source) as (opened, capture):
        database = opened.database
        for row in capture.after(begin, max(0, end - begin)):
            if row.kind == COMMIT or row.table is None or row.change_id > end:
                continue
            if row.table == CATALOG:
                yield IndependentChange(str(row.tx), "", "ddl", text="a change of the catalog")
            elif row.table in opened.captured:
                if row.table not in columns:
                    described = database.rows(f"PRAGMA table_info({quoted(row.table)})")
                    columns[row.table] = [str(column[1]) for column in described]
                yield _change(database, row, columns[row.table])


@contextmanager
def _captured(source: TursoSource) -> Iterator[tuple[OpenFile, Capture]]:
    opened = open_mode(source)
    with closing(opened.database):
        if not isinstance(opened.log, Capture):
            raise SpecError(
                f"source.cdc_mode: with {opened.mode} there is no log that anything else could "
                "read; only native capture keeps one"
            )
        opened.log.check()
        yield opened, opened.log


def _change(database: Database, row: Any, columns: Sequence[str]) -> IndependentChange:
    table = f"{DB}.{row.table}"
    try:
        before = _decoded(database, columns, row.before)
        after = _decoded(database, columns, row.after) if row.kind != DELETE else None
    except DeltaForgeError as error:
        return IndependentChange(str(row.tx), table, "?", text=str(error))
    return IndependentChange(str(row.tx), table, _OPS[row.kind], before, after)


def _decoded(
    database: Database, columns: Sequence[str], image: bytes | None
) -> dict[str, Any] | None:
    if image is None:
        return None
    try:
        text = database.value("SELECT bin_record_json_object(?, ?)", (json.dumps(columns), image))
    except DeltaForgeError as error:
        # Written before the last column came.
        if _FEWER not in str(error) or len(columns) == 1:
            raise
        return _decoded(database, columns[:-1], image)
    decoded: dict[str, Any] = json.loads(text, parse_float=Decimal)
    return decoded
