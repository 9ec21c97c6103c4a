"""What a session's answers depend on besides the data, pinned whatever the server's defaults are.

A server's defaults (``SET GLOBAL``, ``init_connect``) reach every session. ``sql_select_limit``
cuts a SELECT short without a word, ``system_versioning_asof`` shows old rows, a character set
replaces letters. So each session sets what any answer depends on, and the one that reads tables
asks back whether it holds.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_deltaforge.errors import FatalError

_NO_LIMIT = "18446744073709551615"
FIRST = (
    f"SET SESSION sql_mode = '', sql_select_limit = {_NO_LIMIT}, sql_big_selects = 1, "
    "time_zone = '+00:00' /*M!100108 , max_statement_time = 0 */"
)
"""What even the list of variables depends on; every server has these, MariaDB a time limit too."""

_PINNED: Mapping[str, str] = {
    # Which rows, and how many.
    "sql_select_limit": _NO_LIMIT,
    "max_join_size": _NO_LIMIT,
    "sql_big_selects": "1",
    "sql_safe_updates": "0",
    "sql_auto_is_null": "0",
    "system_versioning_asof": "DEFAULT",
    "use_secondary_engine": "OFF",
    "query_cache_type": "OFF",
    "completion_type": "NO_CHAIN",
    # How values and conditions are read and printed.
    "sql_mode": "''",
    "old_mode": "''",
    "time_zone": "'+00:00'",
    "timestamp": "DEFAULT",
    "character_set_client": "utf8mb4",
    "character_set_connection": "utf8mb4",
    "character_set_results": "utf8mb4",
    "group_concat_max_len": "1048576",
    "max_sort_length": "1048576",
    "div_precision_increment": "4",
    "default_week_format": "0",
    "lc_time_names": "'en_US'",
    # Some errors of the log are told apart by their words.
    "lc_messages": "'en_US'",
    # What the catalog shows.
    "show_gipk_in_create_table_and_information_schema": "ON",
    "sql_quote_show_create": "1",
    # How long it may take.
    "max_execution_time": "0",
    "max_statement_time": "0",
    "idle_transaction_timeout": "0",
    "idle_readonly_transaction_timeout": "0",
    "net_write_timeout": "3600",
    # A session rests while a sink takes what another one has read.
    "wait_timeout": "28800",
}
_RESET = "DEFAULT"
_WORDS = {"ON": "1", "OFF": "0", "NO_CHAIN": "0"}


def pin(connection: Any) -> None:
    """Pin what answers depend on; the session begins with ``FIRST``."""
    there = _shown(connection)
    _rows(connection, "SET SESSION " + ", ".join(f"{name} = {_PINNED[name]}" for name in there))


def check_pinned(connection: Any) -> None:
    """Check that the session is as ``pin`` left it: a proxy may have kept a statement to itself.

    Raises:
        FatalError: a setting has another value; the message names it.
    """
    # A limit would cut the list of the others.
    ((limit,),) = _rows(connection, "SELECT @@SESSION.sql_select_limit")
    _check("sql_select_limit", str(limit))
    for name, value in _shown(connection).items():
        _check(name, value)


def _shown(connection: Any) -> dict[str, str]:
    """Return the session's values of those pinned variables that the server has."""
    names = ", ".join(f"'{name}'" for name in _PINNED)
    shown = _rows(connection, f"SHOW SESSION VARIABLES WHERE Variable_name IN ({names})")
    return {str(name): str(value) for name, value in shown if name in _PINNED}


def _check(name: str, value: str) -> None:
    wanted = _PINNED[name].strip("'")
    if wanted != _RESET and _plain(value) != _plain(wanted):
        raise FatalError(
            f"the session's {name} is {value!r} although it was set to {wanted!r}, so rows could "
            "be read wrongly; connect to the server itself, not through a proxy that changes "
            "sessions"
        )


def _plain(value: str) -> str:
    """Return a value in a form that is the same however a server prints it."""
    try:
        return f"{float(value):g}"
    except ValueError:
        return _WORDS.get(value.upper(), value).lower()


def check_count(connection: Any, received: int, table: str) -> None:
    """Check that the last SELECT, one that counts (``SQL_CALC_FOUND_ROWS``), was received whole.

    The server counts while it sends, so this costs one question; a limit that somebody else put on
    the SELECT does not change the count.

    Args:
        connection: right behind that SELECT.
        received: rows that came.
        table: for the error.

    Raises:
        FatalError: rows are missing.
    """
    found = int(_rows(connection, "SELECT FOUND_ROWS()")[0][0])
    if found != received:
        raise FatalError(
            f"{table}: {received} rows of a chunk arrived, but the server found {found}; look for "
            "a limit on SELECTs between here and the server (a proxy, a query rewrite plugin)"
        )


def _rows(connection: Any, sql: str) -> Sequence[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())
