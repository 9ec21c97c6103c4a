"""The tables of a database that keeps state, and how an older database becomes a current one."""

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider_deltaforge.errors import FatalError

STEPS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE df_kv (
            ns {text} NOT NULL, key {text} NOT NULL, val {blob} NOT NULL,
            updated_at BIGINT NOT NULL, expires_at BIGINT, PRIMARY KEY (ns, key))""",
        "CREATE INDEX df_kv_expiry ON df_kv (expires_at) WHERE expires_at IS NOT NULL",
        """CREATE TABLE df_log (
            seq {serial}, ns {text} NOT NULL, key {text} NOT NULL, val {blob} NOT NULL,
            ts BIGINT NOT NULL)""",
        "CREATE INDEX df_log_key ON df_log (ns, key, seq)",
        """CREATE TABLE df_slot (
            ns {text} NOT NULL, key {text} NOT NULL, version BIGINT NOT NULL,
            state {blob} NOT NULL, updated_at BIGINT NOT NULL, PRIMARY KEY (ns, key))""",
        """CREATE TABLE df_queue (
            id {serial}, ns {text} NOT NULL, key {text} NOT NULL, val {blob} NOT NULL,
            ts BIGINT NOT NULL)""",
        "CREATE INDEX df_queue_key ON df_queue (ns, key, id)",
    ),
    ("INSERT INTO df_meta (name, val) VALUES ('identity', {identity})",),
)
"""Step n makes format n + 1 out of format n. A step that was released never changes."""

FORMAT = len(STEPS)
"""The format this release reads and writes."""


def upgrade(
    execute: Callable[[str], Any], found: int, types: Mapping[str, str], where: str
) -> None:
    """Bring a database to the current format, inside the caller's transaction.

    Args:
        execute: runs one statement.
        found: the format the database has; 0: it is empty.
        types: what ``{text}``, ``{blob}`` and ``{serial}`` are in its dialect. ``{identity}`` is
            drawn here: another store that lies at the same address later has another one.
        where: names the database in an error, without its secret.

    Raises:
        FatalError: a newer release wrote this database.
    """
    check(found, where)
    if found == 0:
        execute("CREATE TABLE df_meta (name VARCHAR(64) PRIMARY KEY, val BIGINT NOT NULL)")
        execute("INSERT INTO df_meta (name, val) VALUES ('format', 0)")
    words = {**types, "identity": str(secrets.randbits(62))}
    for step in STEPS[found:]:
        for statement in step:
            execute(statement.format_map(words))
    if found != FORMAT:
        execute(f"UPDATE df_meta SET val = {FORMAT} WHERE name = 'format'")


def check(found: int, where: str) -> None:
    """Refuse a database of a later release.

    Raises:
        FatalError: its format is above ours.
    """
    if found > FORMAT:
        raise FatalError(
            f"the state store {where} has format {found}, this release knows formats up to "
            f"{FORMAT}: upgrade airflow-provider-deltaforge here, or open another store"
        )
