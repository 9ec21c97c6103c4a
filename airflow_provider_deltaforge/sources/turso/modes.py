"""Opens a source in the mode its document, its position or its file asks for."""

from typing import TYPE_CHECKING

from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.sources.contract import LogReader, Snapshotter
from airflow_provider_deltaforge.sources.turso.capture import Capture
from airflow_provider_deltaforge.sources.turso.files import Database, file_of
from airflow_provider_deltaforge.sources.turso.native import NativeReader
from airflow_provider_deltaforge.sources.turso.pacing import Pace
from airflow_provider_deltaforge.sources.turso.positions import Place
from airflow_provider_deltaforge.sources.turso.snapshot import TursoSnapshotter
from airflow_provider_deltaforge.sources.turso.tables import Captured

if TYPE_CHECKING:
    from airflow_provider_deltaforge.sources.turso.source import TursoSource


def open_reader(source: "TursoSource", position: Position | None) -> LogReader:
    """Return a reader behind ``position``; at the head when it is None."""
    database = Database(file_of(source.url), "turso")
    captured = _captured(source)
    capture = Capture(database, source.cdc_table_name, captured)
    start = Place.from_json(head(source) if position is None else position)
    pace = Pace(source.poll_interval_ms / 1000, source.batch_size)
    level = source.native_cdc.level == "binlog"
    return NativeReader(database, capture, captured, start, source.id, pace, level)


def open_snapshot(source: "TursoSource") -> Snapshotter:
    """Return what reads the tables."""
    database = Database(file_of(source.url), "turso")
    captured = _captured(source)

    def capture(opened: Database) -> Capture:
        return Capture(opened, source.cdc_table_name, captured)

    return TursoSnapshotter(
        database,
        captured,
        lambda opened: _head(capture(opened)),
        lambda opened, place: capture(opened).check_kept(place),
        source.id,
    )


def head(source: "TursoSource") -> Position:
    """Return the position behind everything that is committed."""
    database = Database(file_of(source.url), "turso")
    try:
        with database.view():
            return _head(Capture(database, source.cdc_table_name, _captured(source))).as_json()
    finally:
        database.close()


def _head(capture: Capture) -> Place:
    capture.check()
    return capture.head()


def _captured(source: "TursoSource") -> Captured:
    return Captured(source.tables, source.cdc_table_name)
