"""Judges statements that were logged instead of rows, by what they may write.

A log in row format holds rows; a session may still log its statements (``binlog_format``). One
that writes a captured table stops that table. One that may write a captured table by a stored
function, a trigger or a view, which only a server that runs it knows, stops the pipeline. What
certainly writes other tables only is passed over.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from airflow_provider_deltaforge.errors import FatalError, TableError
from airflow_provider_deltaforge.events.table_names import qualified_name
from airflow_provider_deltaforge.sources.mysql.catalog import fetch
from airflow_provider_deltaforge.sources.mysql.connection import translated
from airflow_provider_deltaforge.sources.mysql.ddl.lexer import SqlMode, Token, tokens_of
from airflow_provider_deltaforge.sources.mysql.ddl.statements import Key, Name
from airflow_provider_deltaforge.sources.mysql.ddl.temporary_tables import TemporaryTables
from airflow_provider_deltaforge.sources.mysql.ddl.written_tables import mentioned, writes_of

REMEDY = "set binlog_format=ROW on the server and in every session"

_OWN_WORD = {1064, 1582, 1583}
"""What the server says of its own keywords, and of its functions without their parameters."""

_CHANGES_OBJECTS = {"CREATE", "ALTER", "DROP", "RENAME"}
_CONNECTION_ERRORS = range(2000, 3000)

_log = logging.getLogger(__name__)


@dataclass
class _JudgedStatement:
    """What a server knows of names; asked again after a statement that may have changed it."""

    functions: dict[str, bool] = field(default_factory=dict)
    objects: dict[Key, str | None] = field(default_factory=dict)


class StatementJudge:
    """Knows whether statements in the log may write captured tables.

    Args:
        captures: whether a table's rows are delivered.
        connect: opens a connection, closed after each question.
        mariadb: which server logged the statements.
        temporary: the sessions' temporary tables.

    Attributes:
        warn_only: a statement that may have changed a captured table is a warning, no error.
    """

    def __init__(
        self,
        captures: Callable[[str, str], bool],
        connect: Callable[[], Any],
        temporary: TemporaryTables,
        *,
        mariadb: bool,
    ) -> None:
        self._captures = captures
        self._connect = connect
        self._mariadb = mariadb
        self.warn_only = False
        self._known = _JudgedStatement()
        self._warned: set[Key] = set()
        self._temporary = temporary

    def forget(self) -> None:
        """Ask again about triggers, views and functions."""
        self._known = _JudgedStatement()

    def judge(self, sql: str, db: str, place: str, *, session: int, mode: SqlMode) -> None:
        """Return if a statement cannot have changed a captured table.

        Args:
            sql: the statement.
            db: the database it ran in.
            place: where it is in the log.
            session: the number of its session, which alone sees its temporary tables.
            mode: of the session.

        Raises:
            TableError: it wrote a captured table.
            FatalError: it may have, and that is not only to be warned of.
            RetryableError, AccessError: the server could not be asked.
        """
        tokens = tokens_of(sql, mariadb=self._mariadb, mode=mode)
        writes = writes_of(tokens)
        if writes.verb in _CHANGES_OBJECTS and not writes.temporary:
            self.forget()
        self._temporary.note(writes, db, session)
        tables = [n for n in writes.tables if not self._temporary.has(n, db, session)]
        for name in tables:
            key = self._captured(name, db)
            if key is not None:
                full = qualified_name(*key)
                raise TableError(
                    f"{full}: at {place} {writes.verb} was logged as a statement, so its rows are "
                    f"not in the log; {REMEDY}. MariaDB always logs so what changes a table with a "
                    "history of transactions instead of times",
                    full,
                )
        suspect = next((n for n in writes.names if self._captured(n, db)), None)
        if suspect is not None:
            self._doubt(writes.verb, place, f"it names {suspect[1]}")
        self._check_calls(writes.verb, place, writes.calls)
        for name in tables:
            self._check_written(writes.verb, place, (name[0] or db, name[1]))

    def _captured(self, name: Name, db: str) -> Key | None:
        """Return the captured table of this name; where names have no case, of any."""
        key = (name[0] or db, name[1])
        for candidate in (key, (key[0].lower(), key[1].lower())):
            if self._captures(*candidate):
                return candidate
        return None

    def _check_calls(self, verb: str, place: str, calls: Sequence[tuple[str | None, str]]) -> None:
        for database, function in calls:
            if database is not None or not self._is_native(function):
                self._doubt(verb, place, f"it may call the stored function {function}")

    def _doubt(self, verb: str, place: str, why: str) -> None:
        message = (
            f"{place}: {verb or 'a statement'} was logged as a statement, and whether it changed a "
            f"captured table is not known ({why}); {REMEDY}, and take a new snapshot"
        )
        if not self.warn_only:
            raise FatalError(message)
        _log.warning("%s", message)

    def _check_written(self, verb: str, place: str, key: Key) -> None:
        if key not in self._known.objects:
            self._known.objects[key] = self._asked(lambda c: self._reason(c, key, set()))
        reason = self._known.objects[key]
        if reason is not None:
            self._doubt(verb, place, reason)
        if key not in self._warned:
            self._warned.add(key)
            _log.warning(
                "%s: %s of %s.%s was logged as a statement and is passed over, because that table "
                "is not captured; its triggers are seen only with the TRIGGER privilege. To be "
                "sure, %s",
                place,
                verb,
                *key,
                REMEDY,
            )

    def _reason(self, connection: Any, key: Key, seen: set[Key]) -> str | None:
        """Return why a write of a table may also write a captured one; None if it cannot."""
        if key in seen:
            return None
        seen.add(key)
        named = fetch(
            connection,
            "SELECT TABLE_TYPE FROM information_schema.TABLES "
            "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
            key,
        )
        if any(str(kind).upper().endswith("VIEW") for (kind,) in named):
            return f"{key[0]}.{key[1]} is a view"
        triggers = fetch(
            connection,
            "SELECT TRIGGER_NAME, ACTION_STATEMENT, SQL_MODE FROM information_schema.TRIGGERS "
            "WHERE EVENT_OBJECT_SCHEMA = %s AND EVENT_OBJECT_TABLE = %s",
            key,
        )
        for trigger, body, mode in triggers:
            tokens = tokens_of(str(body), mariadb=self._mariadb, mode=SqlMode.of(str(mode)))
            if self._may_write(connection, tokens, key[0], seen):
                return f"the trigger {trigger} of {key[0]}.{key[1]} may write another table"
        return None

    def _may_write(self, connection: Any, tokens: Sequence[Token], db: str, seen: set[Key]) -> bool:
        names = mentioned(tokens)
        if any(token.upper == "CALL" for token in tokens):
            return True
        if any(self._captured(name, db) for name in names):
            return True
        words = [token for token, behind in pairwise(tokens) if behind.raw == "("]
        if any(token.is_name and not self._is_native(token.raw) for token in words):
            return True
        keys = [(name[0] or db, name[1]) for name in names]
        return any(self._reason(connection, key, seen) is not None for key in keys)

    def _is_native(self, function: str) -> bool:
        """Return whether a name in front of parentheses is the server's own, or a keyword.

        It is asked in a database without functions, and only to read the statement, not to run it.
        """
        if function not in self._known.functions:
            self._known.functions[function] = self._asked(lambda c: _reads_call(c, function))
        return self._known.functions[function]

    def _asked(self, question: Callable[[Any], Any]) -> Any:
        try:
            connection = self._connect()
            try:
                return question(connection)
            finally:
                connection.close()
        except FatalError:
            raise
        except Exception as error:
            raise translated(error, "asking what a logged statement writes") from error


def _reads_call(connection: Any, function: str) -> bool:
    import pymysql

    fetch(connection, "USE information_schema")
    text = f"SELECT {function}()".replace("\\", "\\\\").replace("'", "''")
    try:
        fetch(connection, f"PREPARE deltaforge_question FROM '{text}'")
    except pymysql.err.MySQLError as error:
        code = error.args[0] if error.args else 0
        if code in _CONNECTION_ERRORS or not code:
            raise
        return code in _OWN_WORD
    return True
