"""A MySQL or MariaDB history in which tables change, read without trusting the log for names.

The log's rows are taken by place. Which column stood at which place is what the server's own
catalog said right behind each statement, written down by the one who ran it.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.event import GtidEvent, MariadbGtidEvent, QueryEvent, RotateEvent
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

from tests.oracle.mysql_history import last_number, new_file, number_of, plain, settings
from tests.oracle.verdict import Change
from tests.servers.process import Server

_SERVER_ID = 91828
_ROWS = (WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent)
_DDL = ("CREATE", "ALTER", "DROP", "RENAME")

Columns = Mapping[str, Sequence[str]]
"""By table: the names of its columns, in order."""


def moving_history(
    server: Server, database: str, file: str, after: Mapping[str, Any], told: Sequence[Columns]
) -> list[Change]:
    """Return every row change of a database after a position, in commit order.

    Args:
        server: the source.
        database: whose tables count.
        file: the log's file that began before the first of the statements.
        after: a position; what lies before it is left out.
        told: the tables' columns before all statements, and behind each of them.
    """
    end = new_file(server)
    stream = BinLogStreamReader(
        connection_settings=settings(server),
        server_id=_SERVER_ID,
        is_mariadb="gtid_pos" in after,
        log_file=file,
        log_pos=4,
        blocking=True,
        ignore_decode_errors=True,
        only_events=[*_ROWS, GtidEvent, MariadbGtidEvent, RotateEvent, QueryEvent],
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return list(_changes(stream, database, last_number(after), (file, end), told))
    finally:
        stream.close()


def _changes(
    stream: Any, database: str, last: int, files: tuple[str, str], told: Sequence[Columns]
) -> Iterator[Change]:
    begin, end = files
    gtid, row, statements, begun = "", 0, 0, False
    for event in stream:
        if isinstance(event, RotateEvent):
            if event.next_binlog == end:
                assert statements == len(told) - 1, "the log and the catalog's diary differ"
                return
            # Of MariaDB the library reads the oldest file first, whatever it is asked for.
            begun = begun or event.next_binlog == begin
        elif not begun:
            continue
        elif isinstance(event, GtidEvent | MariadbGtidEvent):
            gtid, row = str(event.gtid), 0
        elif isinstance(event, QueryEvent):
            statements += _is_ddl(event, database)
        else:
            for image in event.rows:
                names = told[statements].get(event.table)
                if event.schema == database and names is not None and number_of(gtid) > last:
                    yield _change(event, image, names, gtid, row)
                row += 1  # noqa: SIM113 - counts over several events


def _is_ddl(event: Any, database: str) -> bool:
    query, schema = event.query, event.schema
    query = (query.decode() if isinstance(query, bytes) else query).lstrip().upper()
    schema = schema.decode() if isinstance(schema, bytes) else schema
    # The database itself is made before the diary begins.
    return schema == database and query.startswith(_DDL) and " DATABASE " not in query


def _change(event: Any, image: Any, names: Sequence[str], gtid: str, row: int) -> Change:
    after = image.get("values") if isinstance(event, WriteRowsEvent) else image.get("after_values")
    before = image.get("values") if after is None else after
    values = list(before.values())
    assert len(values) == len(names), (event.table, names, before)
    told = plain(dict(zip(names, values, strict=True)))
    table = f"{event.schema}.{event.table}"
    return Change((gtid, row), (table, told["id"]), told if after is not None else None)
