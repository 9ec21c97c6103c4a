"""Which tables are captured and how they are decoded, also where the log does not say it.

Without full row metadata a row's columns have no names in the log. They come from the registered
schema, with every statement read since applied to it; failing that, from the catalog, but only if
the log shows that nothing between the reader and the catalog's answer has changed the table. Both
must fit the log's own column count and types. Otherwise the table is not decoded.
"""

from collections.abc import Callable, Collection
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any, TypeVar

from airflow_provider_deltaforge.errors import SchemaError, TableError
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.events.table_names import is_among, qualified_name
from airflow_provider_deltaforge.schemas.history import SchemaHistory
from airflow_provider_deltaforge.sources.mysql.binlog.decode_plans import (
    TableDecodePlan,
    captured_plan,
    computed_columns,
    needs_catalog,
    null_by_default,
    passed_over,
)
from airflow_provider_deltaforge.sources.mysql.binlog.log_schema import agrees, completed
from airflow_provider_deltaforge.sources.mysql.binlog.table_map import TableMap, may_be_sequence
from airflow_provider_deltaforge.sources.mysql.binlog.versioned_tables import (
    Period,
    may_keep_history,
    period_of,
)
from airflow_provider_deltaforge.sources.mysql.catalog import (
    is_transactional,
    kind_of,
    load_locked,
    load_table,
    log_says_all,
)
from airflow_provider_deltaforge.sources.mysql.column_types import sized
from airflow_provider_deltaforge.sources.mysql.connection import MySqlServer, translated
from airflow_provider_deltaforge.sources.mysql.ddl.lexer import SqlMode
from airflow_provider_deltaforge.sources.mysql.ddl.logged_statements import StatementJudge
from airflow_provider_deltaforge.sources.mysql.ddl.pending_ddl import DdlLookahead
from airflow_provider_deltaforge.sources.mysql.ddl.schema_evolution import evolve
from airflow_provider_deltaforge.sources.mysql.ddl.statements import (
    CREATE,
    DDL,
    DROP,
    RENAME,
    Key,
    Statement,
)
from airflow_provider_deltaforge.sources.mysql.ddl.temporary_tables import TemporaryTables
from airflow_provider_deltaforge.sources.mysql.outbox_tables import OutboxTagger
from airflow_provider_deltaforge.sources.mysql.positions import LogPosition
from airflow_provider_deltaforge.spec.patterns import TableMatcher

_QUOTED_MAX = 500

_T = TypeVar("_T")


class _EvolvedSchemas:
    """How tables look at the reader's place, as far as the statements before it say it.

    Attributes:
        now: schemas by table; None: there is none any more, or nobody knows it.
        moved: tables that a statement changed, without a row since.
        outdated: what was registered for a table when a statement changed it.
        last_sql: the last statement about a table.
        met: tables of which a row or a statement came since the reader began.
        statements: how many came since the last ``settle``.
    """

    def __init__(self) -> None:
        self.now: dict[Key, TableSchema | None] = {}
        self.moved: set[Key] = set()
        self.outdated: dict[Key, TableSchema | None] = {}
        self.last_sql: dict[Key, str] = {}
        self.met: set[Key] = set()
        self.statements = 0
        self._settled: tuple[dict[Key, TableSchema | None], set[Key]] = ({}, set())

    def settle(self) -> None:
        """Keep what is known now when ``rewind`` forgets what came after."""
        self.statements = 0
        self._settled = dict(self.now), set(self.moved)

    def rewind(self) -> None:
        """Go back to the last ``settle``: what came after it is read again."""
        self.statements = 0
        self.now, self.moved = dict(self._settled[0]), set(self._settled[1])


class _RegisteredSchemas:
    """What was registered before, at exactly the place that is read.

    Attributes:
        here: returns that place; None before reading began.
    """

    def __init__(self, history: SchemaHistory | None) -> None:
        self.here: Callable[[], LogPosition] | None = None
        self._history = history

    def schema(self, key: Key) -> TableSchema | None:
        """Return the registered schema of a table."""
        if self._history is None or self.here is None:
            return None
        return self._history.schema_at(key[0], None, key[1], self.here().as_json())

    def is_replay(self, key: Key) -> bool:
        """Return whether rows after this place were read before."""
        if self._history is None or self.here is None:
            return False
        return self._history.goes_on(key[0], None, key[1], self.here().as_json())


class _LiveCatalog:
    """The server's catalog as it is now, which may be later than the log that is read."""

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect
        self._full: bool | None = None

    def load(self, key: Key) -> TableSchema | None:
        """Return a table."""
        return self._asked(lambda connection: load_table(connection, *key), _describing(key))

    def load_locked(self, key: Key) -> tuple[TableSchema | None, LogPosition]:
        """Return a table, and a place in the log at which it looked like that."""
        return self._asked(lambda connection: load_locked(connection, *key), _describing(key))

    def kind(self, key: Key) -> str | None:
        """Return what a name is the name of."""
        return self._asked(lambda connection: kind_of(connection, *key), _describing(key))

    def is_transactional(self, key: Key) -> bool:
        """Return whether a table's engine undoes what is rolled back."""
        return self._asked(lambda connection: is_transactional(connection, *key), _describing(key))

    def log_says_all(self) -> bool:
        """Return whether the server writes full row metadata; asked until ``forget``."""
        if self._full is None:
            self._full = self._asked(log_says_all, "asking for binlog_row_metadata")
        return self._full

    def forget(self) -> None:
        """Ask again: another server may answer."""
        self._full = None

    def _asked(self, question: Callable[[Any], _T], doing: str) -> _T:
        with closing(self._connect()) as connection:
            try:
                return question(connection)
            except Exception as error:
                raise translated(error, doing) from error


def _describing(key: Key) -> str:
    return f"describing {key[0]}.{key[1]}"


class CatalogView:
    """Makes decode plans. Used by the reader's thread only.

    Args:
        matcher: which tables are captured.
        info: the server.
        connect: opens a connection, closed after each question.
        lookahead: finds the statements between here and the catalog's answer.
        history: what was registered before.
        tagging: which rows are outbox messages.
        decimal_numbers: DECIMAL becomes a JSON number, not a string.
    """

    def __init__(
        self,
        matcher: TableMatcher,
        info: MySqlServer,
        connect: Callable[[], Any],
        lookahead: DdlLookahead,
        history: SchemaHistory | None = None,
        tagging: OutboxTagger | None = None,
        *,
        decimal_numbers: bool = False,
    ) -> None:
        self._matcher = matcher
        self._info = info
        self._lookahead = lookahead
        self._tagging = tagging
        self._decimal_numbers = decimal_numbers
        self._left_out: frozenset[str] = frozenset()
        self._position: LogPosition | None = None
        self._registered = _RegisteredSchemas(history)
        self._evolved = _EvolvedSchemas()
        self._live = _LiveCatalog(connect)
        self._temporary = TemporaryTables(mariadb=info.mariadb, lower_names=info.lower_names)
        self._judge = StatementJudge(self.captures, connect, self._temporary, mariadb=info.mariadb)

    def skip_tables(self, tables: Collection[str]) -> None:
        """Do not capture some tables, by full name; call it before the first read."""
        self._left_out = frozenset(tables)

    def warn_of_statements(self) -> None:
        """Go on behind statements that may have changed captured tables, with a warning."""
        self._judge.warn_only = True

    def captures(self, db: str, table: str) -> bool:
        """Return whether a table is captured."""
        return self._matcher.matches(db, table) and not is_among(self._left_out, db, table)

    def touches(self, db: str) -> bool:
        """Return whether any table of a database could be captured."""
        return self._matcher.touches(db)

    def begin(self, position: LogPosition, here: Callable[[], LogPosition]) -> None:
        """Go back to a position: what follows is read again; ``here`` returns how far."""
        self._registered.here = here
        self._position = position
        self._evolved.rewind()
        self._temporary.rewind()
        self._live.forget()

    def passed(self, position: LogPosition) -> None:
        """Record that everything so far lies before ``position``."""
        self._lookahead.passed(self._evolved.statements, position)
        self._position = position
        self._evolved.settle()
        self._temporary.settle()

    def judge(self, sql: str, db: str, place: str, *, session: int, mode: SqlMode) -> None:
        """Return if a statement that was logged instead of rows changed no captured table.

        Raises:
            TableError: it wrote a captured table.
            FatalError: it may have.
            RetryableError, AccessError: the server could not be asked.
        """
        self._judge.judge(sql, db, place, session=session, mode=mode)

    def server_restarted(self) -> None:
        """Record that the server was started anew here: sessions before it ended."""
        self._temporary.clear()

    def without_temporary(self, statement: Statement, db: str, session: int) -> Statement:
        """Return what a statement does to other tables than the session's temporary ones."""
        return self._temporary.without(statement, db, session)

    def is_transactional(self, db: str, table: str) -> bool:
        """Return whether a table's engine undoes what is rolled back."""
        return self._live.is_transactional((db, table))

    def changed(self, statement: Statement, db: str, sql: str) -> tuple[TableSchema, ...]:
        """Apply a statement to the schemas; return those of captured tables that are known.

        Raises:
            TableError: it is unknown what a captured table looks like now.
        """
        self._evolved.statements += 1
        self._judge.forget()
        if statement.kind != DDL:
            return ()
        mariadb = self._info.mariadb
        evolved = evolve(statement, db, self._known, mariadb=mariadb)
        after = {k: s and sized(s, mariadb=mariadb) for k, s in evolved.items()}
        gone = _gone(statement, db)
        for key in _made_unless_there(statement, db) - self._evolved.met:
            if self.captures(*key) and not self._live.log_says_all():
                # Dropped before this reader began, it is another than the one that was registered.
                with suppress(TableError):  # Unproven, it counts as the one that was there.
                    after[key] = self._proven(key)
        self._evolved.met.update(after)
        for key, schema in after.items():
            if not self.captures(*key):
                continue
            self._evolved.last_sql[key] = sql
            if schema is None and key not in gone and not self._live.log_says_all():
                # Now, not when rows come: a reader that starts after this would trust the registry.
                after[key] = self._proven(key)
        if statement.drops_database:
            after.update(dict.fromkeys(self._of(statement.databases)))
        for key in after:
            self._evolved.outdated[key] = self._registered.schema(key)
        self._evolved.moved.update(after)
        self._evolved.now.update(after)
        if self._live.log_says_all():
            return ()
        return tuple(s for k, s in after.items() if s is not None and self.captures(*k))

    def plan(self, table: TableMap) -> TableDecodePlan:
        """Return how to decode a captured table.

        Raises:
            TableError: no trusted description of its rows exists.
            RetryableError, AccessError: the server could not be asked.
        """
        key = (table.db, table.table)
        if self._info.mariadb and may_be_sequence(table) and self._is_sequence(key, table):
            return passed_over(table)
        try:
            plan = self._plan(key, table)
        except TableError:
            raise
        except SchemaError as error:
            raise self._stopped(key, str(error)) from error
        if self._info.mariadb:
            plan = replace(plan, computed=computed_columns(plan.schema))
        else:
            plan = replace(plan, null_by_default=null_by_default(table))
        self._evolved.now[key] = plan.schema
        self._evolved.met.add(key)
        self._evolved.moved.discard(key)
        if self._decimal_numbers:
            plan = plan.with_decimal_numbers()
        return plan if self._tagging is None else replace(plan, tagged=self._tagging.of(*key))

    def _is_sequence(self, key: Key, table: TableMap) -> bool:
        """Return whether a name is that of a sequence; a dropped one is known by its columns."""
        if self._known(key) is not None:
            return False
        kind = self._live.kind(key)
        return kind == "SEQUENCE" or (kind is None and table.named)

    def _plan(self, key: Key, table: TableMap) -> TableDecodePlan:
        charsets = self._info.charsets
        known = self._known(key)
        known = completed(known, table, charsets) if known is not None else None
        fits = known is not None and agrees(table, charsets, known)
        if not needs_catalog(table, mariadb=self._info.mariadb):
            if not fits or key in self._evolved.moved:
                known = self._fitting_schema(key, table) or known
            return captured_plan(table, charsets, None, known, self._period(key, table, known))
        doubt = None
        if known is not None and not fits:
            doubt = "its rows in the log do not fit what is known of its columns"
        elif known is not None:
            try:
                return captured_plan(table, charsets, known, period=period_of(table, known))
            except SchemaError as error:
                doubt = str(error)
        live = self._proven(key, doubt)
        return captured_plan(table, charsets, live, period=period_of(table, live))

    def _period(self, key: Key, table: TableMap, known: TableSchema | None) -> Period | None:
        """Return the columns that bound a row's period; None: the table keeps no history.

        Raises:
            SchemaError: the log may hold rows of the past, and which ones is unknown.
        """
        if not (self._info.mariadb and may_keep_history(table)):
            return None
        if known is not None and agrees(table, self._info.charsets, known):
            return period_of(table, known)
        # Of another time, and still: the names of a period's columns cannot be changed.
        return period_of(table, self._live.load(key) or known)

    def _fitting_schema(self, key: Key, table: TableMap) -> TableSchema | None:
        """Return a schema with what a full log does not know, after a change; None: there is none.

        What was registered here the first time comes first, so that a replay gives the same. The
        catalog may be ahead of the log, but not in anything that the log knows.
        """
        charsets = self._info.charsets
        registered = self._registered.schema(key)
        fresh = registered != self._evolved.outdated.get(key) or self._registered.is_replay(key)
        if registered is not None and fresh and agrees(table, charsets, registered):
            return registered
        live = self._live.load(key)
        return live if live is not None and agrees(table, charsets, live) else None

    def _known(self, key: Key) -> TableSchema | None:
        """Return the schema by statements and registry; None if they have none.

        What was registered before a statement that was not understood is not trusted after it.
        """
        known = self._evolved.now.get(key)
        if known is None:
            known = self._registered.schema(key)
            if known is not None and known == self._evolved.outdated.get(key):
                return None
            self._evolved.now[key] = known
        return known

    def _proven(self, key: Key, doubt: str | None = None) -> TableSchema:
        """Return the catalog's schema, if the log shows that it holds here."""
        if self._position is None:
            raise self._stopped(key, "its columns are not known")
        schema, end = self._live.load_locked(key)
        ahead = self._lookahead.between(self._position, end, self._temporary.copy())
        ahead = ahead[self._evolved.statements :]
        later = [ddl for ddl in ahead if ddl.touches(key)]
        if later:
            why = f"{doubt}; " if doubt is not None else ""
            self._evolved.last_sql[key] = later[0].sql
            raise self._stopped(
                key,
                f"{why}the log does not name its columns, and the table was changed since "
                "these rows were written",
            )
        if schema is None:
            raise self._stopped(key, "the log does not name its columns, and the table is gone")
        return schema

    def _stopped(self, key: Key, reason: str) -> TableError:
        name = qualified_name(*key)
        sql = self._evolved.last_sql.get(key)
        quoted = f". The statement was: {sql[:_QUOTED_MAX]}" if sql is not None else ""
        reason = reason.removeprefix(f"{name}: ")
        return TableError(f"{name}: {reason}{quoted}", name)

    def _of(self, databases: Collection[str]) -> list[Key]:
        return [key for key in self._evolved.now if key[0] in databases]


def _made_unless_there(statement: Statement, db: str) -> set[Key]:
    """Return the tables of ``CREATE TABLE IF NOT EXISTS``."""
    acts = [act for act in statement.acts if act.what == CREATE and act.tolerant]
    return {(act.table[0] or db, act.table[1]) for act in acts}


def _gone(statement: Statement, db: str) -> set[Key]:
    """Return the names that no table has any more after a statement."""
    gone: set[Key] = set()
    for act in statement.acts:
        key = (act.table[0] or db, act.table[1])
        if act.what in (DROP, RENAME):
            gone.add(key)
        else:
            gone.discard(key)
        if act.what == RENAME and act.other is not None:
            gone.discard((act.other[0] or db, act.other[1]))
    return gone
