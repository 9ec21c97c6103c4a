"""Looks before the leap: what would stop or spoil a snapshot and its stream."""

import re
from collections.abc import Iterator, Mapping, Sequence

from airflow_provider_deltaforge.errors import DeltaForgeError
from airflow_provider_deltaforge.sources.contract import Finding
from airflow_provider_deltaforge.sources.shared.preflight import (
    failed,
    listed,
    tables_finding,
)
from airflow_provider_deltaforge.sources.turso.audit import uncaptured
from airflow_provider_deltaforge.sources.turso.capture import Capture
from airflow_provider_deltaforge.sources.turso.database import Database, quoted
from airflow_provider_deltaforge.sources.turso.modes import open_mode
from airflow_provider_deltaforge.sources.turso.open_file import OpenFile
from airflow_provider_deltaforge.sources.turso.polling import Growth
from airflow_provider_deltaforge.sources.turso.server_address import ServerAddress, is_server
from airflow_provider_deltaforge.sources.turso.servers import ServerDatabase
from airflow_provider_deltaforge.sources.turso.shadows import (
    Shadows,
    misfits,
    script,
    untriggered,
)
from airflow_provider_deltaforge.sources.turso.source import TursoSource
from airflow_provider_deltaforge.sources.turso.tables import (
    DB,
    TursoTable,
    captured_tables,
    named_by,
)

_AFTER_INSERT = re.compile(r"\bAFTER\s+INSERT\b", re.IGNORECASE)
_CAPTURED_MANY = 1_000_000


def preflight(source: TursoSource) -> Sequence[Finding]:
    """Check the file, its locks, capture and tables; never raises for a finding.

    Nothing is changed: triggers that are missing are only named.
    """
    found: list[Finding] = []
    try:
        opened = open_mode(source)
    except DeltaForgeError as error:
        return [failed(_check_name(source), error)]
    try:
        with opened.database.view():
            for finding in _findings(source, opened):
                found.append(finding)
        found += _write_findings(opened)
    except DeltaForgeError as error:
        found.append(failed(_check_name(source), error))
    finally:
        opened.database.close()
    return found


def _findings(source: TursoSource, opened: OpenFile) -> Iterator[Finding]:
    database, log = opened.database, opened.log
    tables = captured_tables(database, opened.captured)
    about = database.about()
    yield Finding(
        _check_name(source),
        "ok",
        f"{database.place} can be read beside its writers "
        f"({about.get('server') or database.engine})",
        about,
    )
    if isinstance(database, ServerDatabase):
        yield from _server(source, database.address)
    chosen = " (chosen by auto)" if source.cdc_mode == "auto" else ""
    yield Finding("cdc_mode", "ok", f"changes are followed by {opened.mode}{chosen}")
    yield from _table_findings(source, tables)
    if isinstance(log, Capture):
        yield from _native(database, source.cdc_table_name, log, tables)
    elif isinstance(log, Shadows):
        yield _triggers(source, database, tables)
    else:
        yield from _polling(log, tables)


def _check_name(source: TursoSource) -> str:
    return "server" if is_server(source.url) else "file"


def _server(source: TursoSource, address: ServerAddress) -> Iterator[Finding]:
    if source.auth_token is not None and address.scheme == "http" and not address.is_loopback:
        yield Finding(
            "tls",
            "warn",
            f"{address} is not encrypted: anybody between can read source.auth_token; use "
            "libsql:// or https://",
        )


def _write_findings(opened: OpenFile) -> list[Finding]:
    """Ask a server for the right to write, which a token may lack, by a deletion of no row."""
    if not (isinstance(opened.database, ServerDatabase) and isinstance(opened.log, Shadows)):
        return []
    tables = list(captured_tables(opened.database, opened.captured))
    try:
        with opened.database.writing():
            for name in tables[:1]:
                opened.database.rows(f"DELETE FROM {quoted(name)} WHERE 0")
    except DeltaForgeError as error:
        return [failed("write", error)]
    return []


def _table_findings(source: TursoSource, tables: Mapping[str, TursoTable]) -> Iterator[Finding]:
    yield tables_finding(len(tables), source.tables, "check the spelling")
    if not tables:
        return
    vain = [pattern for pattern in source.tables if not any(map(named_by((pattern,)), tables))]
    yield from listed("patterns", vain, "no table matches; check the spelling")
    keyless = [f"{DB}.{name}" for name, table in tables.items() if not table.schema.primary_key]
    yield from listed("primary_key", keyless, "no primary key: their events have no key")


def _native(
    database: Database, cdc_table: str, capture: Capture, tables: Mapping[str, TursoTable]
) -> Iterator[Finding]:
    capture.check()
    yield Finding("capture", "ok", f"changes are captured into {cdc_table}")
    rows = capture.head_id() - capture.first_id()
    if rows > _CAPTURED_MANY:
        yield Finding(
            "capture_size",
            "warn",
            f"{cdc_table} holds about {rows} changes and only grows; delete rows that every "
            "pipeline has read, but never the last one",
            {"rows": rows},
        )
    born = {name: made for name, made in capture.born().items() if name in tables}
    strange = uncaptured(database, cdc_table, born)
    yield from listed(
        "writers",
        strange,
        "they hold other rows than the captured inserts and deletes explain: some connection "
        "writes without PRAGMA unstable_capture_data_changes_conn('full')",
    )
    yield from listed(
        "insert_triggers",
        _with_insert_triggers(database, tables),
        "triggers run AFTER INSERT: what they change of the new row is captured before the insert, "
        "which then comes last and shows the row without it; write such values with the row, or "
        "BEFORE",
    )
    generated = [f"{DB}.{name}" for name, table in tables.items() if table.generated]
    yield from listed("generated", generated, "computed columns may be missing in captured rows")


def _with_insert_triggers(database: Database, tables: Mapping[str, TursoTable]) -> list[str]:
    rows = database.rows("SELECT tbl_name, sql FROM sqlite_schema WHERE type = 'trigger'")
    found = {str(name) for name, sql in rows if _AFTER_INSERT.search(str(sql))}
    return [f"{DB}.{name}" for name in tables if name in found]


def _triggers(source: TursoSource, database: Database, tables: Mapping[str, TursoTable]) -> Finding:
    missing = misfits(database, tables)
    if not missing:
        return Finding("triggers", "ok", "the triggers are there and fit their tables")
    names = ", ".join(missing)
    if source.auto_create_triggers:
        return Finding("triggers", "ok", f"the triggers of {names} will be made at start")
    sql = script(missing, untriggered(database, missing))
    return Finding(
        "triggers",
        "fail",
        f"{names}: the triggers are missing or do not fit; set source.auto_create_triggers: true, "
        f"or run:\n{sql}",
        {"tables": list(missing), "sql": sql},
    )


def _polling(growth: Growth, tables: Mapping[str, TursoTable]) -> Iterator[Finding]:
    for name, table in tables.items():
        try:
            growth.tracking(table)
        except DeltaForgeError as error:
            yield Finding("tracking_column", "fail", str(error), {"table": name})
    yield Finding("polling", "warn", "only inserts are seen: updates and deletes leave no trace")
    reused = [
        f"{DB}.{name}"
        for name, table in tables.items()
        if table.rowid is not None and not table.autoincrement
    ]
    if reused and growth.by_rowid:
        yield from listed(
            "rowid",
            reused,
            "without AUTOINCREMENT, the number of a deleted last row is given again, and rows may "
            "be inserted below it; such rows are missed",
        )
