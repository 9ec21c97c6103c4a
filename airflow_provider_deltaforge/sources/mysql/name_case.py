"""Names on servers that keep them in small letters (``lower_case_table_names``)."""

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.sources.mysql.connection import MySqlServer
from airflow_provider_deltaforge.sources.mysql.outbox_tables import OutboxTagger
from airflow_provider_deltaforge.spec.patterns import TableMatcher


def check_case(server: MySqlServer, matcher: TableMatcher, tagging: OutboxTagger | None) -> None:
    """Refuse patterns with capital letters where the log has all names in small ones.

    Args:
        server: whose names they are.
        matcher: which tables are captured.
        tagging: which rows are outbox messages.

    Raises:
        SpecError: a pattern can match nothing.
    """
    if not server.lower_names:
        return
    _check(matcher, "source.tables")
    if tagging is not None:
        _check(tagging.matcher, "source.outbox.tables")


def _check(matcher: TableMatcher, key: str) -> None:
    why = (
        "can match no table, because the server keeps names in small letters "
        "(lower_case_table_names); write it in small letters"
    )
    for pattern in matcher.patterns:
        if pattern != pattern.lower():
            raise SpecError(f"{key}: {pattern!r} {why}")
        if "." not in pattern and matcher.default and matcher.default != matcher.default.lower():
            raise SpecError(
                f"{key}: {pattern!r} in the database of source.dsn, {matcher.default!r}, {why}"
            )
