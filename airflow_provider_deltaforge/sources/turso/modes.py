"""Opens a source in the mode its document, its position or its file asks for.

A position belongs to one mode for good: with ``auto``, a pipeline that has begun goes on in the
mode it began with, whatever the file offers later. Where the mode is ours to choose, the head is
told in every mode that the file offers, so that it can be compared with where such a pipeline
stands.
"""

import logging

from airflow_provider_deltaforge.errors import PositionLostError, SpecError
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.sources.contract import Snapshotter
from airflow_provider_deltaforge.sources.reader_contract import LogReader
from airflow_provider_deltaforge.sources.turso.capture import Capture, exists
from airflow_provider_deltaforge.sources.turso.database import Database
from airflow_provider_deltaforge.sources.turso.file_reader import Pace
from airflow_provider_deltaforge.sources.turso.files import FileDatabase, file_of, usual_engine
from airflow_provider_deltaforge.sources.turso.native import NativeReader
from airflow_provider_deltaforge.sources.turso.open_file import Log, OpenFile
from airflow_provider_deltaforge.sources.turso.polling import Growth, PollReader
from airflow_provider_deltaforge.sources.turso.positions import FilePosition
from airflow_provider_deltaforge.sources.turso.server_address import is_server, server_of
from airflow_provider_deltaforge.sources.turso.servers import ServerDatabase
from airflow_provider_deltaforge.sources.turso.shadows import Shadows, shadow_name
from airflow_provider_deltaforge.sources.turso.snapshot import TursoSnapshotter
from airflow_provider_deltaforge.sources.turso.source import TursoSource
from airflow_provider_deltaforge.sources.turso.tables import CapturedTables, captured_tables
from airflow_provider_deltaforge.sources.turso.triggers import TriggerReader

_MODES = ("native", "triggers", "polling")

_log = logging.getLogger(__name__)


def open_mode(source: TursoSource, position: Position | None = None) -> OpenFile:
    """Open a source's database in the mode that applies.

    Raises:
        PositionLostError: the position was made in another mode than the document's.
        SpecError: ``auto`` leads to a mode that cannot do what the document asks for.
    """
    captured = CapturedTables(source.tables, source.cdc_table_name)
    mode: str = source.cdc_mode
    made = None if position is None else FilePosition.from_json(position).mode
    if mode == "auto":
        mode = made or chosen_mode(source)
    elif made is not None and made != mode:
        raise PositionLostError(
            f"source.cdc_mode is {mode}, but the pipeline stands at a position of the mode {made}; "
            f"set it back to {made}, or take a new snapshot"
        )
    if mode != "native" and source.native_cdc.level == "binlog":
        raise SpecError(
            "source.native_cdc: binlog needs native capture, but cdc_mode auto follows "
            f"{source.url} by {mode}; set level: data, or cdc_mode: native once every writer "
            "captures"
        )
    database = _database_of(source, is_native=mode == "native")
    passed_over = _MODES[_MODES.index(mode) + 1 :] if source.cdc_mode == "auto" else ()
    log, *others = (_log_of(source, name, database, captured) for name in (mode, *passed_over))
    return OpenFile(mode, database, captured, log, tuple(others))


def _log_of(source: TursoSource, mode: str, database: Database, captured: CapturedTables) -> Log:
    if mode == "native":
        return Capture(database, source.cdc_table_name, captured)
    if mode == "triggers":
        return Shadows(database, captured, create=source.auto_create_triggers)
    return Growth(database, captured, source.tracking_column)


def _database_of(source: TursoSource, *, is_native: bool = False) -> Database:
    if is_server(source.url):
        token = None if source.auth_token is None else source.auth_token.get_secret_value()
        return ServerDatabase(server_of(source.url), token, source.tuning)
    path = file_of(source.url)
    return FileDatabase(path, "turso" if is_native else usual_engine(path), source.tuning.busy_s)


def chosen_mode(source: TursoSource) -> str:
    """Return the first mode that the database offers: native, triggers, polling."""
    database = _database_of(source)
    try:
        captured = CapturedTables(source.tables, source.cdc_table_name)
        if exists(database, source.cdc_table_name):
            mode = "native"
        else:
            names = captured_tables(database, captured)
            made = any(exists(database, shadow_name(name)) for name in names)
            mode = "triggers" if made or source.auto_create_triggers else "polling"
    finally:
        database.close()
    _log.info("source %s: cdc_mode auto follows %s by %s", source.id, database.place, mode)
    return mode


def open_reader(source: TursoSource, position: Position | None, *, cleans: bool) -> LogReader:
    """Return a reader behind ``position``; at the head when it is None."""
    opened = open_mode(source, position)
    database, log = opened.database, opened.log
    pace = Pace(source.poll_interval_ms / 1000, source.batch_size, source.tuning.audit_s)
    try:
        start = _head(opened) if position is None else FilePosition.from_json(position)
        if isinstance(log, Capture):
            level = source.native_cdc.level == "binlog"
            captured = opened.captured
            return NativeReader(database, log, captured, start, source.id, pace, level)
        if isinstance(log, Shadows):
            return TriggerReader(database, log, start, source.id, pace, cleans=cleans)
        return PollReader(database, log, start, source.id, pace)
    except BaseException:
        database.close()
        raise


def open_snapshot(source: TursoSource) -> Snapshotter:
    """Return what reads the tables."""

    def in_mode_of(position: Position) -> OpenFile:
        return open_mode(source, position)

    return TursoSnapshotter(open_mode(source), source.id, in_mode_of)


def head(source: TursoSource) -> Position:
    """Return the position behind everything that is committed."""
    opened = open_mode(source)
    try:
        return opened.heads().as_json()
    finally:
        opened.database.close()


def check_kept(source: TursoSource, position: Position) -> None:
    """Check that the table of changes, or the triggers' tables, have all behind a position.

    Raises:
        PositionLostError: they have not.
    """
    opened = open_mode(source, position)
    try:
        place = FilePosition.from_json(position).within(opened.mode)
        if isinstance(opened.log, (Capture, Shadows)) and place is not None:
            opened.prepare()
            with opened.database.view():
                opened.log.check_kept(place)
    finally:
        opened.database.close()


def describe(source: TursoSource) -> list[TableSchema]:
    """Return every captured table as it is now."""
    opened = open_mode(source)
    try:
        with opened.database.view():
            found = captured_tables(opened.database, opened.captured)
            return [table.schema for table in found.values()]
    finally:
        opened.database.close()


def _head(opened: OpenFile) -> FilePosition:
    opened.prepare()
    with opened.database.view():
        return opened.head()
