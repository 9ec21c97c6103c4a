"""Messages of ``pgoutput`` that a slot's peek returns, cut into a chunk by plain Python.

It stands for the reader, so that the decoder is tested against what the server itself wrote.
"""

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from airflow_provider_deltaforge.events.ids import id_key
from airflow_provider_deltaforge.sources.postgres.positions import WalPosition, WalTxPositions
from airflow_provider_deltaforge.sources.postgres.snapshot.copy_rows import decode_copy
from airflow_provider_deltaforge.sources.postgres.wal.decode_plans import (
    Planner,
    WalDecodePlans,
    WalTablePlan,
)
from airflow_provider_deltaforge.sources.postgres.wal.decoder import decode_segment
from airflow_provider_deltaforge.sources.postgres.wal.log_segment import ROW_COLUMNS, WalSegment
from airflow_provider_deltaforge.sources.postgres.wal.messages import Relation, RelationColumn
from airflow_provider_deltaforge.spec.patterns import TableMatcher
from tests.servers.process import Server

KEY = id_key("test")
_KINDS = {b"I": 0, b"U": 1, b"D": 2}
_SESSION = "-c datestyle=ISO -c timezone=UTC -c intervalstyle=postgres -c lc_monetary=C"
_BASE = WalPosition(0, "7", 1)


class Wal:
    """A slot and a publication of all tables."""

    def __init__(self, connection: Any, name: str) -> None:
        self._connection = connection
        self.name = name
        connection.execute(f"CREATE PUBLICATION {name} FOR ALL TABLES")
        connection.execute(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")

    def messages(self) -> list[bytes]:
        """Return what was written since the last call."""
        rows = self._connection.execute(
            f"SELECT data FROM pg_logical_slot_get_binary_changes('{self.name}', NULL, NULL, "
            f"'proto_version', '1', 'publication_names', '{self.name}')"
        ).fetchall()
        return [bytes(row[0]) for row in rows]

    def drop(self) -> None:
        """Take slot and publication away."""
        self._connection.execute(f"SELECT pg_drop_replication_slot('{self.name}')")
        self._connection.execute(f"DROP PUBLICATION {self.name}")


def relation_of(message: bytes) -> Relation:
    """Read a ``Relation`` message."""
    (oid,) = struct.unpack_from(">I", message, 1)
    schema, at = _text(message, 5)
    table, at = _text(message, at)
    identity = chr(message[at])
    (count,) = struct.unpack_from(">H", message, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        flags = message[at]
        name, at = _text(message, at + 1)
        type_oid, typmod = struct.unpack_from(">Ii", message, at)
        at += 8
        columns.append(RelationColumn(name, type_oid, typmod, bool(flags & 1)))
    return Relation(oid, schema, table, identity, tuple(columns))


def chunk_of(messages: list[bytes], planner: Planner, db: str = "postgres") -> WalSegment:
    """Put messages into one chunk."""
    plans: list[WalTablePlan] = []
    current: dict[int, int] = {}
    types: dict[int, dict[str, str]] = {}
    rows: list[list[int]] = []
    transactions: list[tuple[int, int, int, int]] = []
    data = bytearray()
    index = 0
    for message in messages:
        letter, start = message[:1], len(data)
        data += message
        if letter == b"B":
            commit, stamp, xid = struct.unpack_from(">QQI", message, 1)
            transactions.append((commit + 8, commit, xid, stamp // 1000))
            index = 0
        elif letter == b"Y":
            (oid,) = struct.unpack_from(">I", message, 1)
            schema, at = _text(message, 5)
            types[oid] = {"type_schema": schema, "type_name": _text(message, at)[0]}
        elif letter == b"R":
            relation = relation_of(message)
            columns = (c._replace(**types.get(c.type_oid, {})) for c in relation.columns)
            relation = replace(relation, columns=tuple(columns))
            current[relation.oid] = len(plans)
            plans.append(planner.plan(relation))
        elif letter in _KINDS:
            (oid,) = struct.unpack_from(">I", message, 1)
            if plans[current[oid]].captured:
                tx = len(transactions) - 1
                rows.append([start + 5, len(data), _KINDS[letter], tx, current[oid], index])
            index += 1
    ends, commits, xids, times = np.array(transactions or [(0,) * 4], np.int64).T.copy()
    return WalSegment(
        nbytes=len(data),
        data=np.frombuffer(data, np.uint8),
        rows=np.array(rows, np.int64).reshape(-1, ROW_COLUMNS),
        plans=WalDecodePlans(tuple(plans)),
        positions=WalTxPositions(_BASE, ends, commits, xids, times),
        db=db,
    )


def changes(wal: Wal, planner: Planner) -> list[dict[str, Any]]:
    """Return what was written since the last call as decoded events."""
    batch = decode_segment(chunk_of(wal.messages(), planner), KEY)
    batch.rows.validate(full=True)
    return batch.rows.to_pylist()


def any_table(db: str, connect: Any) -> Planner:
    """Return a planner that captures everything."""
    return Planner(db, TableMatcher((), "public"), connect)


def _text(message: bytes, at: int) -> tuple[str, int]:
    end = message.index(b"\0", at)
    return message[at:end].decode(), end + 1


@contextmanager
def database(
    server: Server, name: str, options: str = ""
) -> Iterator[tuple[Any, Callable[[], Any]]]:
    """Yield a connection to a new database, and a function that opens more of the kind."""
    import psycopg

    with psycopg.connect(server.dsn("postgres"), autocommit=True) as admin:
        admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        admin.execute(f"CREATE DATABASE {name} TEMPLATE template0 {options}")

    def connect() -> Any:
        return psycopg.connect(
            server.dsn(name), autocommit=True, options=_SESSION, client_encoding="UTF8"
        )

    with connect() as connection:
        yield connection, connect


def copied(connection: Any, planner: Planner, table: str, size: int = 0) -> list[dict[str, Any]]:
    """Return a table's rows, in the order of their first column, read by COPY.

    Args:
        connection: to the database.
        planner: of the database.
        table: in the schema ``public``.
        size: bytes handed to the decoder at a time; all at once by default.
    """
    plan = planner.plan_of_table("public", table)
    assert plan is not None
    sql = f'COPY (SELECT {plan.select} FROM "{table}" ORDER BY 1) TO STDOUT'
    with connection.cursor().copy(sql) as copy:
        data = b"".join(bytes(line) for line in copy)
    rows: list[dict[str, Any]] = []
    rest = b""
    for start in range(0, len(data), size or max(1, len(data))):
        rest += data[start : start + (size or len(data))]
        batch, consumed = decode_copy(rest, plan)
        batch.validate(full=True)
        rows += batch.to_pylist()
        rest = rest[consumed:]
    assert not rest
    return rows
