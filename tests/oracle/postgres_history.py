"""A PostgreSQL server's own history, as its ``test_decoding`` plug-in tells it: text, not ours.

A second replication slot, made before the pipeline starts, sees every transaction in the order of
commits. Nothing of our decoder is in it: the server prints the values, and this module reads them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.oracle.verdict import UNCHANGED, AllRows, Change
from tests.servers.process import Server

_ROW = re.compile(r"table (.+?): (INSERT|UPDATE|DELETE): (.*)", re.DOTALL)
_TRUNCATE = re.compile(r"table (.+): TRUNCATE: .*")
_VALUE = re.compile(
    r"""\s*(?:"((?:[^"]|"")+)"|([^\s"\[]+))          # the column's name
        \[((?:[^\[\]]|\[\])+)\]:                      # its type
        (null|unchanged-toast-datum|B?'(?:[^']|'')*'|[^\s']+)""",
    re.DOTALL | re.VERBOSE,
)
_WHOLE = {"bigint", "integer", "smallint"}


@dataclass
class History:
    """The history of one database from now on.

    Args:
        server: the source.
        database: whose changes are kept.
        roots: partition to its root, both with their schemas: rows come under the root's name.
    """

    server: Server
    database: str
    roots: Mapping[str, str] = field(default_factory=dict)
    slot: str = ""

    def __post_init__(self) -> None:
        self.slot = self.slot or f"truth_{self.database}"
        self._ask("SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", self.slot)

    def close(self) -> None:
        """Let the server forget the history."""
        self._ask("SELECT pg_drop_replication_slot(%s)", self.slot)

    def changes(self, after: Mapping[str, Any] | None, tables: Sequence[str]) -> list[Change]:
        """Return every change of some tables after a position, in commit order.

        Args:
            after: a position with ``lsn``: what is committed up to it is left out.
            tables: names with their schemas, exactly those that the pipeline captures.
        """
        begin = number(after["lsn"]) if after else 0
        return [change for place, change in self.placed(tables) if place > begin]

    def placed(self, tables: Sequence[str]) -> list[tuple[int, Change]]:
        """Return every change of some tables, each with where its transaction's commit ends."""
        told = self._ask(
            "SELECT lsn, xid::text, data FROM pg_logical_slot_peek_changes(%s, NULL, NULL,"
            " 'skip-empty-xacts', '1')",
            self.slot,
        )
        return list(read(told, tables, self.roots, self.database))

    def _ask(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        import psycopg

        # Times are printed as the reading session likes them.
        with psycopg.connect(
            self.server.dsn(self.database), autocommit=True, options="-c timezone=UTC"
        ) as connection:
            return connection.execute(statement, values).fetchall()


def read(
    told: Sequence[tuple[str, str, str]],
    tables: Sequence[str],
    roots: Mapping[str, str],
    database: str,
) -> Iterator[tuple[int, Change]]:
    """Yield the changes in lines of ``test_decoding``: (log position, transaction, text)."""
    transaction: list[Change] = []
    for lsn, xid, text in told:
        if text.startswith("BEGIN"):
            transaction = []
        elif text.startswith("COMMIT"):
            # The line's position is where the commit record ends.
            yield from ((number(lsn), change) for change in transaction)
        else:
            for table, key, moved_from, state in _changes(text, roots):
                if table in tables:
                    whole = f"{database}.{table}"
                    transaction.append(
                        Change(
                            (int(xid), len(transaction)),
                            AllRows(whole) if key is None else (whole, key),
                            state,
                            (whole, moved_from) if moved_from is not None else None,
                        )
                    )


def _changes(text: str, roots: Mapping[str, str]) -> Iterator[tuple[str, Any, Any, Any]]:
    """Yield (table, id, former id, state) for one line; a truncation has no id."""
    row = _ROW.fullmatch(text)
    if row is None:
        truncated = _TRUNCATE.fullmatch(text)
        if truncated is None:
            if not text.startswith("message:"):
                raise ValueError(f"cannot read {text[:200]!r}")
            return
        for table in dict.fromkeys(roots.get(t, t) for t in truncated[1].split(", ")):
            yield table, None, None, None
        return
    table, kind, rest = roots.get(row[1], row[1]), row[2], row[3]
    if kind == "DELETE":
        yield table, values(rest)["id"], None, None
        return
    old: dict[str, Any] = {}
    if rest.startswith("old-key: "):
        before, _, rest = rest.removeprefix("old-key: ").partition(" new-tuple: ")
        old = values(before)
    state = values(rest)
    former = old.get("id", state["id"])
    yield table, state["id"], former if former != state["id"] else None, state


def values(text: str) -> dict[str, Any]:
    """Read ``name[type]:value name[type]:value …`` in the JSON shapes of our events."""
    found, at = {}, 0
    while at < len(text):
        part = _VALUE.match(text, at)
        if part is None:
            raise ValueError(f"cannot read {text[at : at + 200]!r}")
        name = part[1].replace('""', '"') if part[1] else part[2]
        found[name] = _shape(part[3], part[4])
        at = part.end()
    return found


def _shape(kind: str, text: str) -> Any:
    if text == "null":
        return None
    if text == "unchanged-toast-datum":
        return UNCHANGED
    if text.startswith("'"):
        text = text[1:-1].replace("''", "'")
    return shape(kind, text)


def shape(kind: str, text: str) -> Any:
    """Return a server's text as our events tell it, for the few types that the shop has."""
    if kind in _WHOLE:
        return int(text)
    if kind == "boolean":
        return text in ("true", "t")
    if kind == "timestamp with time zone":
        if not text.endswith("+00"):
            raise ValueError(f"{text!r} is not in UTC: the shop's sessions must be")
        return text.removesuffix("+00").replace(" ", "T") + "Z"
    if kind.startswith(("numeric", "text", "character varying", "uuid")):
        return text
    raise ValueError(f"the oracle knows no type {kind!r}")


def table_rows(server: Server, database: str, tables: Sequence[str]) -> dict[Any, Any]:
    """Return the tables as they are now, by (table, id)."""
    import psycopg

    rows = {}
    with psycopg.connect(server.dsn(database), options="-c timezone=UTC") as connection:
        for table in tables:
            described = connection.execute(
                "SELECT quote_ident(attname), attname, format_type(atttypid, NULL)"
                " FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0"
                " AND NOT attisdropped ORDER BY attnum",
                (table,),
            ).fetchall()
            selected = ", ".join(f"{quoted}::text" for quoted, _, _ in described)
            for told in connection.execute(f"SELECT {selected} FROM {table}"):
                row = {
                    name: None if text is None else shape(kind, text)
                    for (_, name, kind), text in zip(described, told, strict=True)
                }
                rows[f"{database}.{table}", row["id"]] = row
    return rows


def name_of(event: dict[str, Any]) -> tuple[int, int]:
    """Return where an event of ours says it stands: its transaction, its place in it."""
    return event["source"]["txId"], event["source"]["row"]


def number(lsn: str) -> int:
    """Return a log position as a number."""
    high, _, low = lsn.partition("/")
    return (int(high, 16) << 32) + int(low, 16)
