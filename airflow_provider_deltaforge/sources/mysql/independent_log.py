"""The log as python-mysql-replication reads it: a second opinion about our own decoder.

It reads under a server id that nothing else has, so that neither the pipeline nor another look at
the log loses its connection, and leaves nothing on the server.
"""

import base64
import secrets
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from airflow_provider_deltaforge.errors import PositionLostError
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.events.table_names import qualified_name
from airflow_provider_deltaforge.sources.mysql import session
from airflow_provider_deltaforge.sources.mysql.binlog.framing_kernel import GTID_TAGGED, HEADER
from airflow_provider_deltaforge.sources.mysql.binlog.rare_events import parse_tagged_gtid
from airflow_provider_deltaforge.sources.mysql.connection import (
    connection_class,
    read_head,
    server_info,
    translated,
)
from airflow_provider_deltaforge.sources.mysql.gtid import GtidPos, GtidSet
from airflow_provider_deltaforge.sources.mysql.named_places import FileOffset, named_place
from airflow_provider_deltaforge.sources.mysql.positions import LogPosition, file_number
from airflow_provider_deltaforge.sources.shared.independent_change import (
    UNKNOWN_VALUE,
    IndependentChange,
)

if TYPE_CHECKING:
    from airflow_provider_deltaforge.sources.mysql.source import MySqlSource

_BEGINNING = 4
_CONNECTIONS_MAX = 2
_LOST = 2013
_SILENT_S = 10.0
"""How long the server may send nothing; at the end of its log it says so at once."""
_LAST = 2**63 - 2
"""Above every transaction's number."""


def log_position(source: "MySqlSource", text: str) -> tuple[Position, Position]:
    """Return the place that a person writes, and one at or before it where reading may begin.

    Raises:
        SpecError: it is none of those that ``named_place`` knows.
    """
    with closing(source.connect()) as connection:
        head = read_head(connection)
    named = named_place(text, head.gtids, "--at")
    if isinstance(named, FileOffset):
        begin = {"file": named.file, "pos": _BEGINNING, "server_uuid": head.server_uuid}
        return {**begin, "pos": named.offset}, begin
    if isinstance(named, dict):
        return named, named
    if isinstance(head.gtids, GtidSet):
        before: GtidSet | GtidPos = head.gtids - GtidSet.parse(
            f"{named.origin}:{named.number}-{_LAST}"
        )
    else:
        domain, server = map(int, named.origin.split("-"))
        before = (head.gtids or GtidPos()).at(domain, server, named.number - 1)
    place = LogPosition("", 0, before, head.server_uuid).as_json()
    return place, place


def independent_changes(
    source: "MySqlSource", after: Position, upto: Position
) -> Iterator[IndependentChange]:
    """Yield what the library reads of captured tables between two positions.

    Raises:
        RetryableError, AccessError, PositionLostError: as our own reader.
    """
    begin, end = LogPosition.from_json(after), LogPosition.from_json(upto)
    before = GtidSet()
    connections = _Connections()
    try:
        with closing(source.connect()) as connection:
            info = server_info(connection)
            if not begin.file and isinstance(begin.gtids, GtidSet) and begin.gtids.has_tags:
                before = begin.gtids
                begin = replace(begin, file=_file_behind(connection, before), pos=_BEGINNING)
        with (
            warnings.catch_warnings(),
            closing(_stream(source, begin, info.mariadb, connections)) as stream,
        ):
            warnings.simplefilter("ignore", DeprecationWarning)  # Of what it says to its driver.
            events = _events(stream, connections)
            yield from _changes(stream, events, source.matcher.matches, end, before)
    except Exception as error:
        raise translated(error, "reading the log with python-mysql-replication") from error


class _Connections:
    """Opens the library's connections: its stream's, then one for its questions, and no more.

    By itself it connects again whenever a connection breaks, for ever.
    """

    def __init__(self) -> None:
        self._opened = 0

    @property
    def is_streaming(self) -> bool:
        """Whether the stream began: only then are there questions."""
        return self._opened == _CONNECTIONS_MAX

    def open(self, **settings: Any) -> Any:
        import pymysql

        if self.is_streaming:
            raise pymysql.OperationalError(_LOST, "the connection broke")
        self._opened += 1
        return connection_class()(**settings)


def _file_behind(connection: Any, gtids: GtidSet) -> str:
    """Return the newest file that only transactions of a set lie before.

    The library cannot ask for a set that has tags.

    Raises:
        PositionLostError: no file goes back that far.
    """
    with connection.cursor() as cursor:
        cursor.execute("SHOW BINARY LOGS")
        for file, *_ in reversed(cursor.fetchall()):
            cursor.execute("SHOW BINLOG EVENTS IN %s LIMIT 2", (file,))
            heads = [row[5] for row in cursor.fetchall() if row[2] == "Previous_gtids"]
            if heads and GtidSet.parse(heads[0]) <= gtids:
                return str(file)
    raise PositionLostError(f"the server's log is not kept back to {gtids}")


def _stream(
    source: "MySqlSource",
    begin: LogPosition,
    mariadb: bool,  # noqa: FBT001
    connections: _Connections,
) -> Any:
    from pymysqlreplication import BinLogStreamReader
    from pymysqlreplication.event import (
        GtidEvent,
        MariadbGtidEvent,
        NotImplementedEvent,
        QueryEvent,
        RotateEvent,
    )
    from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

    address = source.address()
    # By name of the file if it is known: of MariaDB the library takes offsets only so.
    place: dict[str, Any] = {"log_file": begin.file, "log_pos": begin.pos, "resume_stream": True}
    if not begin.file:
        place = {"auto_position": str(begin.gtids), "is_mariadb": mariadb}
    return BinLogStreamReader(
        connection_settings={
            "host": address.host,
            "port": address.port,
            "user": address.user,
            "password": address.password.get_secret_value().encode(),
            "charset": "utf8mb4",
            "connect_timeout": source.connect_timeout_s,
            "read_timeout": min(source.read_timeout_s, _SILENT_S),
            "init_command": session.FIRST,
            "ssl": address.tls(),
            "ssl_disabled": address.ssl_mode == "disabled",
        },
        server_id=source.beside(f"log-{secrets.token_hex(8)}", once=True).replica_id,
        use_column_name_cache=True,
        only_events=[
            *(WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent),
            *(GtidEvent, MariadbGtidEvent, QueryEvent, RotateEvent, NotImplementedEvent),
        ],
        filter_non_implemented_events=False,
        pymysql_wrapper=connections.open,
        enable_logging=False,
        **place,
    )


def _changes(
    stream: Any,
    events: Iterator[Any],
    is_captured: Callable[[str, str], bool],
    end: LogPosition,
    before: GtidSet,
) -> Iterator[IndependentChange]:
    """Yield what the events change up to a place, without the transactions of a set."""
    from pymysqlreplication.event import (
        GtidEvent,
        MariadbGtidEvent,
        NotImplementedEvent,
        QueryEvent,
    )
    from pymysqlreplication.row_event import RowsEvent

    gtid = ""
    is_before = False
    for event in events:
        if isinstance(event, str):
            if not is_before:
                yield IndependentChange(gtid, "", "?", text=event)
        elif (file_number(stream.log_file), stream.log_pos) > (file_number(end.file), end.pos):
            return
        elif isinstance(event, GtidEvent | MariadbGtidEvent | NotImplementedEvent):
            gtid = _gtid(event, gtid)
            is_before = bool(before) and GtidSet.parse(gtid) <= before
        elif is_before:
            continue
        elif isinstance(event, QueryEvent):
            if event.query not in ("BEGIN", "COMMIT"):
                yield IndependentChange(gtid, "", "ddl", text=event.query)
        elif isinstance(event, RowsEvent) and is_captured(event.schema, event.table):
            yield from _rows(event, gtid)


def _gtid(event: Any, last: str) -> str:
    """Return the name of the transaction that begins, or else of the last one.

    The library does not read a name that has a tag.
    """
    from pymysqlreplication.event import NotImplementedEvent

    if not isinstance(event, NotImplementedEvent):
        return str(event.gtid)
    if event.event_type != GTID_TAGGED:
        return last
    body = event.packet.read_bytes  # Without the checksum.
    gtid = parse_tagged_gtid(event.packet.packet.get_all_data()[1 : 1 + HEADER + body])
    return f"{gtid.origin}:{gtid.number}"


def _events(stream: Any, connections: _Connections) -> Iterator[Any]:
    """Yield the events, and of one that the library does not know, why not."""
    from pymysql.err import MySQLError

    while True:
        try:
            event = stream.fetchone()
        except (MySQLError, OSError):
            raise
        except Exception as error:
            if not connections.is_streaming:
                raise  # It has no event yet, and would try the same again for ever.
            yield _reason(error)
            continue
        if event is None:
            return
        yield event


def _rows(event: Any, gtid: str) -> Iterator[IndependentChange]:
    from pymysqlreplication.row_event import DeleteRowsEvent, WriteRowsEvent

    table = qualified_name(event.schema, event.table)
    try:
        rows = event.rows
    except Exception as error:  # noqa: BLE001 - as above
        yield IndependentChange(gtid, table, "?", text=_reason(error))
        return
    columns = {column.name: column for column in event.columns}
    for row in rows:
        if isinstance(event, WriteRowsEvent):
            after = _shown(columns, row["values"], row["none_sources"])
            yield IndependentChange(gtid, table, "c", None, after)
        elif isinstance(event, DeleteRowsEvent):
            before = _shown(columns, row["values"], row["none_sources"])
            yield IndependentChange(gtid, table, "d", before, None)
        else:
            before = _shown(columns, row["before_values"], row["before_none_sources"])
            after = _shown(columns, row["after_values"], row["after_none_sources"])
            yield IndependentChange(gtid, table, "u", before, after)


def _reason(error: Exception) -> str:
    return f"python-mysql-replication cannot read it ({type(error).__name__}: {error})"


def _shown(
    columns: Mapping[str, Any], values: Mapping[str, Any], none_sources: Mapping[str, str]
) -> dict[str, Any]:
    """Return a row in our shapes; what the library leaves open is unknown."""
    return {
        name: _value(columns.get(name), value, none_sources.get(name, "null"))
        for name, value in values.items()
    }


def _value(column: Any, value: Any, none_source: str) -> Any:
    from pymysqlreplication.constants import FIELD_TYPE

    if value is None:
        if none_source == "empty set":
            return "" if column is not None and column.set_values else UNKNOWN_VALUE
        return None if none_source == "null" else UNKNOWN_VALUE
    if column is None:
        return UNKNOWN_VALUE
    shown: Callable[[Any, Any], Any] | None = {
        FIELD_TYPE.FLOAT: _float,
        FIELD_TYPE.DOUBLE: lambda _, number: Decimal(repr(number)),
        FIELD_TYPE.NEWDECIMAL: lambda column, number: f"{number:.{column.decimals}f}",
        FIELD_TYPE.BIT: lambda column, bits: bits == "1" if column.bits == 1 else int(bits, 2),
        FIELD_TYPE.SET: lambda column, labels: ",".join(
            label for label in column.set_values if label in labels
        ),
        FIELD_TYPE.JSON: lambda _, document: _document(document),
        FIELD_TYPE.GEOMETRY: _geometry,
        FIELD_TYPE.YEAR: lambda _, year: year if year != _YEAR_ZERO else UNKNOWN_VALUE,
    }.get(column.type)
    if shown is not None:
        return shown(column, value)
    if isinstance(value, datetime | date | timedelta):
        return _moment(column, value)
    return _text(column, value)


_YEAR_ZERO = 1900
"""What the library makes of the year 0000."""


def _float(column: Any, number: float) -> Decimal:
    del column
    return Decimal(np.format_float_positional(np.float32(number), unique=True))


def _geometry(column: Any, value: bytes) -> dict[str, Any]:
    del column
    return {
        "srid": int.from_bytes(value[:4], "little"),
        "_base64": base64.b64encode(value[4:]).decode(),
    }


def _moment(column: Any, value: datetime | date | timedelta) -> Any:
    from pymysqlreplication.constants import FIELD_TYPE

    digits = getattr(column, "fsp", 0)
    if isinstance(value, datetime):
        zone = "Z" if column.type in (FIELD_TYPE.TIMESTAMP, FIELD_TYPE.TIMESTAMP2) else ""
        return f"{value:%Y-%m-%dT%H:%M:%S}".zfill(19) + _fraction(value.microsecond, digits) + zone
    if isinstance(value, date):
        return value.isoformat()
    if value < timedelta(0) and digits:
        return UNKNOWN_VALUE  # It takes the fraction off on the wrong side.
    seconds = abs(value) // timedelta(seconds=1)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return ("-" if value < timedelta(0) else "") + clock + _fraction(value.microseconds, digits)


def _fraction(microseconds: int, digits: int) -> str:
    return f".{microseconds:06}"[: 1 + digits] if digits else ""


def _text(column: Any, value: Any) -> Any:
    from pymysqlreplication.constants import FIELD_TYPE

    if isinstance(value, bytes):
        return {"_base64": base64.b64encode(value).decode()}
    if value == "" and column.type == FIELD_TYPE.BLOB:
        return UNKNOWN_VALUE  # It shows an empty text for an empty BLOB, too.
    return value


def _document(value: Any) -> Any:
    """Return a JSON document; the library leaves its texts encoded."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, list):
        return [_document(part) for part in value]
    if isinstance(value, dict):
        return {_document(name): _document(part) for name, part in value.items()}
    return Decimal(repr(value)) if isinstance(value, float) else value
