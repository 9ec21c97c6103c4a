"""Rows in the log that their transaction took back.

MariaDB logs the rows of a transaction that is rolled back, with the ROLLBACK behind them, if the
transaction also made or dropped a temporary table. Rows of engines without transactions never
stand there: they come before, in a transaction of their own.
"""

from airflow_provider_deltaforge.errors import FatalError
from airflow_provider_deltaforge.events.table_names import qualified_name
from airflow_provider_deltaforge.sources.mysql.binlog.open_segment import (
    Catalog,
    OpenSegment,
    Savepoint,
)
from airflow_provider_deltaforge.sources.mysql.ddl.lexer import SqlMode, tokens_of


def note_savepoint(segment: OpenSegment, sql: str, mode: SqlMode) -> None:
    """Note where in the open transaction a SAVEPOINT is."""
    name = _name_behind(sql, "SAVEPOINT", mode)
    segment.savepoints.append(Savepoint(segment.open_tx, name, segment.scanned.rows_count))


def undo_rows(segment: OpenSegment, catalog: Catalog, sql: str, mode: SqlMode) -> bool:
    """Leave out what a ROLLBACK took back; return whether the transaction goes on.

    Raises:
        FatalError: it is not certain which rows of captured tables stayed.
    """
    goes_on = any(token.upper == "TO" for token in tokens_of(sql, mode=mode))
    if not segment.rows_of_open_tx():
        return goes_on
    if not segment.info.mariadb:
        raise _uncertain(segment, "the engines of its tables differ")
    if segment.is_continued and (segment.cut_tx.delivered or goes_on):
        raise _uncertain(segment, "a part of it is delivered already")
    if any(change.tx == segment.open_tx for change in segment.changes):
        raise _uncertain(segment, "it changed a table's columns too")
    first = _savepoint(segment, _name_behind(sql, "TO", mode)) if goes_on else 0
    for key in segment.tables_with_rows(first):
        if not catalog.is_transactional(*key):
            why = f"the engine of {qualified_name(*key)} does not undo them, or is not known"
            raise _uncertain(segment, why)
    segment.drop_rows(first)
    return goes_on


def _name_behind(sql: str, word: str, mode: SqlMode) -> str:
    """Return the savepoint's name behind a word, as the server compares such names."""
    tokens = tokens_of(sql, mode=mode)
    at = next(at for at, token in enumerate(tokens) if token.upper == word) + 1
    if len(tokens) > at + 1 and tokens[at].upper == "SAVEPOINT":
        at += 1
    return " ".join(token.text for token in tokens[at:]).rstrip(" ").lower()


def _savepoint(segment: OpenSegment, name: str) -> int:
    """Return how many row events were before a savepoint, and forget those behind it.

    A trigger's savepoint may have the name of one outside, which it does not replace.
    """
    mine = [s for s in segment.savepoints if s.tx == segment.open_tx]
    if not all(s.name.isascii() for s in mine):
        raise _uncertain(segment, "names of savepoints with other letters than ASCII may be equal")
    named = [s for s in mine if s.name == name]
    if not named:
        raise _uncertain(segment, f"the log does not say where its savepoint {name} was")
    first, last = named[0], named[-1]
    if segment.tables_with_rows(first.rows, last.rows):
        raise _uncertain(segment, f"it has more than one savepoint {name}")
    del segment.savepoints[segment.savepoints.index(last) + 1 :]
    return first.rows


def _uncertain(segment: OpenSegment, why: str) -> FatalError:
    return FatalError(
        f"{segment.place}: a transaction was rolled back, at least in part, and the log does not "
        f"say for certain which of its rows stayed ({why}); use InnoDB for all captured tables and "
        "take a new snapshot"
    )
