"""The privileges that ``SHOW GRANTS`` lists, and those that are missing."""

import re
from collections.abc import Iterable, Sequence

from airflow_provider_deltaforge.events.table_names import qualified_name

_GRANT = re.compile(r"^GRANT (?P<what>.+?) ON (?P<where>\S+|`.*`\.\S+) TO ", re.DOTALL)
_QUOTED = re.compile(r"`(?P<name>(?:[^`]|``)*)`")
_NAME = re.compile(r"`((?:[^`]|``)*)`|([^`.]+)")
_LOG_PRIVILEGES = {
    "REPLICATION SLAVE": {"REPLICATION SLAVE"},
    # MariaDB renamed it; the old word is still accepted in GRANT, the new one is shown.
    "REPLICATION CLIENT": {"REPLICATION CLIENT", "BINLOG MONITOR"},
}
_ALL = {"ALL", "ALL PRIVILEGES"}


def missing_privileges(
    grants: Sequence[str], databases: Iterable[str], *, mariadb: bool, gtids: bool
) -> list[str]:
    """Return the privileges a pipeline needs and ``SHOW GRANTS`` does not show.

    SELECT is counted as present for a database when it is granted on all of it or on any table of
    it: the catalog shows captured tables only to users who may read them. Privileges that come with
    roles are not seen unless the server lists them.

    Args:
        grants: lines of SHOW GRANTS.
        databases: of the captured tables.
        mariadb: whose words to use.
        gtids: without them, tables are locked for an instant.
    """
    everywhere, per_database = _parse(grants)
    if everywhere & _ALL or has_role(grants):
        return []
    missing = [name for name, words in _LOG_PRIVILEGES.items() if not everywhere & words]
    if mariadb:
        missing = [name.replace("REPLICATION CLIENT", "BINLOG MONITOR") for name in missing]
    needed = ["SELECT"] if gtids else ["SELECT", "LOCK TABLES"]
    for privilege in needed:
        missing += [
            f"{privilege} on {db}.*"
            for db in databases
            if not {privilege, *_ALL} & (everywhere | _of(per_database, db))
        ]
    return missing


def granted_by_column(grants: Sequence[str]) -> list[str]:
    """Return the tables, as the server writes them, with columns that may not be read."""
    by_column: dict[str, str] = {}
    whole: set[str] = set()
    for line in grants:
        match = _GRANT.match(line)
        if match is None:
            continue
        what = re.sub(r"\([^)]*\)", "()", match["what"])
        plain = {word.strip().upper() for word in what.split(",")}
        where = _unquoted(match["where"])
        if plain & {"SELECT", *_ALL}:
            whole.add(where)
        elif "SELECT ()" in plain:
            by_column[where] = qualified_name(_qualifier(match["where"]), "*")
    return sorted(
        where for where, database in by_column.items() if not whole & {where, database, "*.*"}
    )


def has_role(grants: Sequence[str]) -> bool:
    """Return whether the user has a role, whose privileges may not be listed."""
    return any(_is_role(line) for line in grants)


def _of(per_database: dict[str, set[str]], db: str) -> set[str]:
    """Return what is granted on a database; grants may hold LIKE wildcards."""
    found: set[str] = set()
    for pattern, words in per_database.items():
        unescaped = pattern.replace("\\_", "_").replace("\\%", "%")
        like = "".join(".*" if c == "%" else "." if c == "_" else re.escape(c) for c in unescaped)
        if pattern == db or re.fullmatch(like, db):
            found |= words
    return found


def _parse(grants: Sequence[str]) -> tuple[set[str], dict[str, set[str]]]:
    """Return the privileges on ``*.*``, and those on anything of each database."""
    everywhere: set[str] = set()
    per_database: dict[str, set[str]] = {}
    for line in grants:
        match = _GRANT.match(line)
        if match is None:
            continue
        what = re.sub(r"\([^)]*\)", "", match["what"])
        words = {word.strip().upper() for word in what.split(",")}
        where = match["where"]
        if where == "*.*":
            everywhere |= words
        else:
            per_database.setdefault(_qualifier(where), set()).update(words)
    return everywhere, per_database


def _unquoted(where: str) -> str:
    """Return what a privilege is on without the server's quotes: ``shop.orders``, ``*.*``."""
    names = _NAME.findall(where)
    return qualified_name(*(plain or quoted.replace("``", "`") for quoted, plain in names))


def _qualifier(where: str) -> str:
    """Return the database of what a privilege is on; names may hold dots."""
    quoted = _QUOTED.match(where)
    if quoted is None:
        return where.partition(".")[0]
    return quoted["name"].replace("``", "`")


def _is_role(line: str) -> bool:
    """Return whether a line grants a role: no ``ON``; what it brings is not in the list."""
    return line.startswith("GRANT ") and " ON " not in line
