"""A MySQL or MariaDB server's own history, read by python-mysql-replication, not by our decoder."""

import bisect
import datetime
import decimal
import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pymysql
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.event import GtidEvent, MariadbGtidEvent, RotateEvent, XidEvent
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

from tests.oracle.readers import NameOf
from tests.oracle.verdict import Change
from tests.servers.process import Server

_SERVER_ID = 91827
_ROWS = (WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent)


def settings(server: Server) -> dict[str, Any]:
    place = {"host": server.host, "port": server.port}
    return {**place, "user": "root", "password": "", "ssl_disabled": True}


def new_file(server: Server) -> str:
    """Let the server begin a new log file, and return its name."""
    _ask(server, "FLUSH BINARY LOGS")
    return str(_ask(server, "SHOW BINARY LOGS")[-1][0])


def _ask(server: Server, statement: str) -> Sequence[tuple[Any, ...]]:
    with pymysql.connect(**settings(server)) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        found: Sequence[tuple[Any, ...]] = cursor.fetchall()
        return found


def history(server: Server, database: str, after: Mapping[str, Any]) -> list[Change]:
    """Return every row change of a database after a position, in commit order.

    Args:
        server: the source.
        database: whose tables count; rows of others only count for the row numbers.
        after: a position with ``gtid_set`` (MySQL) or ``gtid_pos`` (MariaDB). Reading begins at
            the start of its file, and what lies before it is left out.
    """
    last = last_number(after)
    placed = _read(server, database, after["file"], is_mariadb="gtid_pos" in after)
    return [change for (number, _), change in placed if number > last]


def placed_history(server: Server, database: str, first_file: str) -> list[tuple[Any, Change]]:
    """Return every row change of a database from a file on, each with its transaction's place.

    That is the GTID's number. Without GTIDs it is the file's number and where the row event ends,
    and ``plain_names`` names the changes.
    """
    [[version]] = _ask(server, "SELECT VERSION()")
    placed = _read(server, database, first_file, is_mariadb="MariaDB" in version)
    if any(number for (number, _), _ in placed):
        return [(number, change) for (number, _), change in placed]
    return [(at, change) for (_, at), change in placed]


def plain_names(
    placed: Sequence[tuple[Any, Change]],
) -> tuple[list[tuple[Any, Change]], NameOf]:
    """Return changes without GTIDs by their transaction's number, and what names events of ours.

    An event says where its transaction starts, the library where a row event of it ends.
    """
    firsts = [place for place, change in placed if change.name[1] == 0]

    def number(place: Any) -> int:
        return bisect.bisect_right(firsts, place)

    def name_of(event: dict[str, Any]) -> tuple[int, int]:
        return number(place_of(event["source"])) + 1, event["source"]["row"]

    named = [
        (place, replace(change, name=(number(place), change.name[1]))) for place, change in placed
    ]
    return named, name_of


def place_of(position: Mapping[str, Any]) -> tuple[int, int]:
    """Return a position as a place without GTIDs."""
    return int(position["file"].rpartition(".")[2]), int(position["pos"])


def _read(
    server: Server, database: str, first_file: str, *, is_mariadb: bool
) -> list[tuple[tuple[int, Any], Change]]:
    # The rotation to this file is the last event of all that happened until now.
    end = new_file(server)
    begin: dict[str, Any] = {"log_file": first_file, "log_pos": 4}
    if is_mariadb:
        # The library begins at the server's very first file where it is not asked for GTIDs.
        [[gtids]] = _ask(server, f"SELECT BINLOG_GTID_POS('{first_file}', 4)")
        begin = {"auto_position": gtids}
    stream = BinLogStreamReader(
        connection_settings=settings(server),
        server_id=_SERVER_ID,
        is_mariadb=is_mariadb,
        **begin,
        # Without blocking the library asks MariaDB for the same log again, for ever.
        blocking=True,
        use_column_name_cache=True,
        # Other tests' tables in the same file may hold text the library cannot read; their rows
        # are only counted.
        ignore_decode_errors=True,
        only_events=[*_ROWS, GtidEvent, MariadbGtidEvent, RotateEvent, XidEvent],
    )
    try:
        with warnings.catch_warnings():
            # The library itself still says ``db`` to the driver.
            warnings.simplefilter("ignore", DeprecationWarning)
            return list(_changes(stream, database, first_file, end))
    finally:
        stream.close()


def _changes(
    stream: Any, database: str, file: str, end: str
) -> Iterator[tuple[tuple[int, Any], Change]]:
    """Yield the changes until the log rotates to file ``end``, with their numbers and places."""
    gtid, row = "", 0
    for event in stream:
        if isinstance(event, RotateEvent):
            file = event.next_binlog
            if file == end:
                return
        elif isinstance(event, GtidEvent | MariadbGtidEvent):
            gtid, row = str(event.gtid), 0
        elif isinstance(event, XidEvent):
            gtid, row = "", 0
        else:
            place = place_of({"file": file, "pos": stream.log_pos})
            for image in event.rows:
                if event.schema == database:
                    yield (number_of(gtid), place), _change(event, image, gtid, row)
                row += 1  # noqa: SIM113 - counts over several events


def table_rows(server: Server, database: str, tables: list[str]) -> dict[Any, Any]:
    """Return the tables as they are now, by (table, id)."""
    rows = {}
    with (
        pymysql.connect(**settings(server), cursorclass=pymysql.cursors.DictCursor) as connection,
        connection.cursor() as cursor,
    ):
        for table in tables:
            cursor.execute(f"SELECT * FROM `{database}`.`{table}`")
            for row in cursor.fetchall():
                rows[f"{database}.{table}", row["id"]] = plain(row)
    return rows


def name_of(event: dict[str, Any]) -> tuple[str, int]:
    """Return where an event of ours says it stands in the log."""
    return event["source"]["gtid"], event["source"]["row"]


def plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row in the JSON shapes of our events, for the few types the shop uses."""
    return {name.lower(): _value(value) for name, value in row.items()}


def _value(value: Any) -> Any:
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, datetime.datetime):
        return value.isoformat(timespec="milliseconds")
    return value.decode() if isinstance(value, bytes) else value


def _change(event: Any, image: Mapping[str, Any], gtid: str, row: int) -> Change:
    after = image.get("values") if isinstance(event, WriteRowsEvent) else image.get("after_values")
    before = image.get("values") or image["before_values"]
    table = f"{event.schema}.{event.table}"
    if after is None:
        return Change((gtid, row), (table, before["id"]), None)
    moved_from = (table, before["id"]) if before["id"] != after["id"] else None
    return Change((gtid, row), (table, after["id"]), plain(after), moved_from)


def number_of(gtid: str) -> int:
    """Return a GTID's number; 0 where there is none."""
    if not gtid:
        return 0
    return int(gtid.replace("-", ":").rsplit(":", 1)[1])


def last_number(position: Mapping[str, Any]) -> int:
    """Return the last untagged transaction of the server itself."""
    if position.get("gtid_pos"):
        return number_of(position["gtid_pos"])
    sets = (each.strip().split(":") for each in (position.get("gtid_set") or "").split(","))
    intervals = next((parts for uuid, *parts in sets if uuid == position["server_uuid"]), [])
    untagged = itertools.takewhile(lambda part: part.replace("-", "").isdigit(), intervals)
    return max((int(part.rsplit("-", 1)[-1]) for part in untagged), default=0)
