"""The temporary tables of the log's sessions, each of which hides another table of its name.

A session that logs statements (``binlog_format``) logs what it does to them by the same words as
what it does to other tables.
"""

from dataclasses import replace

from airflow_provider_deltaforge.sources.mysql.ddl.lexer import SqlMode, tokens_of
from airflow_provider_deltaforge.sources.mysql.ddl.statements import (
    CREATE,
    DROP,
    OTHER,
    RENAME,
    TRUNCATE,
    Act,
    Key,
    Name,
    Statement,
    copied_table,
)
from airflow_provider_deltaforge.sources.mysql.ddl.written_tables import Writes, writes_of


class TemporaryTables:
    """Knows which temporary tables there are where the log is read.

    Args:
        mariadb: which server logged the statements.
        lower_names: names of tables have no case.
    """

    def __init__(self, *, mariadb: bool, lower_names: bool = False) -> None:
        self._mariadb = mariadb
        self._lower_names = lower_names
        self._now: frozenset[tuple[int, Key]] = frozenset()
        self._settled = self._now

    def copy(self) -> "TemporaryTables":
        """Return the tables as they were at the last ``settle``."""
        other = TemporaryTables(mariadb=self._mariadb, lower_names=self._lower_names)
        other._now = other._settled = self._settled
        return other

    def settle(self) -> None:
        """Keep what is known now when ``rewind`` forgets what came after."""
        self._settled = self._now

    def rewind(self) -> None:
        """Go back to the last ``settle``: what came after it is read again."""
        self._now = self._settled

    def clear(self) -> None:
        """Forget all of them: their sessions ended with the server."""
        self._now = self._settled = frozenset()

    def has(self, name: Name, db: str, session: int) -> bool:
        """Return whether a session means a temporary table by a name."""
        return self._entry(name, db, session) in self._now

    def note(self, writes: Writes, db: str, session: int) -> None:
        """Take note of the temporary tables that a statement makes or drops."""
        changed = {self._entry(name, db, session) for name in writes.temporary}
        self._now = self._now | changed if writes.verb == "CREATE" else self._now - changed

    def note_statement(self, sql: str, db: str, session: int, mode: SqlMode) -> None:
        """Take note of what a statement that is no schema change makes or drops."""
        if "TEMPORARY" in sql.upper():
            writes = writes_of(tokens_of(sql, mariadb=self._mariadb, mode=mode))
            self.note(writes, db, session)

    def without(self, statement: Statement, db: str, session: int) -> Statement:
        """Return what a statement does to other tables than temporary ones.

        Its kind is ``OTHER`` if nothing is left.
        """
        if not any(owner == session for owner, _ in self._now):
            return statement
        if statement.kind == TRUNCATE:
            hidden = any(self.has(name, db, session) for name in statement.tables)
            return Statement(OTHER, statement.verb) if hidden else statement
        if not statement.acts:
            return statement
        acts = [act for act in statement.acts if not self._takes(act, statement, db, session)]
        if not acts:
            return Statement(OTHER, statement.verb)
        acts = [self._unknown_copy(act, db, session) for act in acts]
        names = {name for act in acts for name in (act.table, act.other) if name is not None}
        tables = tuple(name for name in statement.tables if name in names)
        return replace(statement, tables=tables, acts=tuple(acts))

    def _takes(self, act: Act, statement: Statement, db: str, session: int) -> bool:
        """Return whether a temporary table is changed, whose new name is noted.

        The servers log their drops with the word TEMPORARY, and a table is created beside them.
        MySQL renames them by ALTER TABLE only.
        """
        is_past = act.what in (CREATE, DROP) or (statement.verb == "RENAME" and not self._mariadb)
        if is_past or not self.has(act.table, db, session):
            return False
        if act.what == RENAME and act.other is not None:
            self._now -= {self._entry(act.table, db, session)}
            self._now |= {self._entry(act.other, db, session)}
        return True

    def _unknown_copy(self, act: Act, db: str, session: int) -> Act:
        """Return a creation LIKE a temporary table as one that does not say its columns."""
        source = copied_table(act)
        is_hidden = source is not None and self.has(source, db, session)
        return replace(act, body=()) if is_hidden else act

    def _entry(self, name: Name, db: str, session: int) -> tuple[int, Key]:
        key = (name[0] or db, name[1])
        return session, (key[0].lower(), key[1].lower()) if self._lower_names else key
