"""What the preflights of servers share."""

from airflow_provider_deltaforge.errors import AccessError, DeltaForgeError, FatalError
from airflow_provider_deltaforge.sources.contract import Finding
from airflow_provider_deltaforge.sources.shared.preflight import (
    checked,
    copy_s,
    duration_text,
    risk,
)


class Connection:
    closed = False

    def close(self):
        self.closed = True


def translated(error, doing):
    return FatalError(f"{doing}: {error}")


def test_thresholds_are_inclusive():
    assert [risk(p) for p in (49.9, 50, 79.9, 80)] == ["ok", "warn", "warn", "high_risk"]


def test_durations_are_short():
    assert [duration_text(s) for s in (0, 45, 59.4, 125, 3600, 7260)] == [
        "0s", "45s", "59s", "2m5s", "1h0m", "2h1m",
    ]  # fmt: skip


def test_tables_are_copied_side_by_side():
    assert [copy_s(160 << 20, tables, 4) for tables in (0, 1, 2, 9)] == [8.0, 8.0, 4.0, 2.0]


def test_a_look_that_fails_is_a_finding_and_the_connection_is_closed():
    for error, told in (
        (AccessError("no"), ("fail", "no", "access")),
        (KeyError("odd"), ("fail", "preflight: 'odd'", "fatal")),
    ):
        connection = Connection()

        def look(_, error=error) -> list[Finding]:
            raise error

        (found,) = checked(lambda connection=connection: connection, look, translated)

        assert (found.verdict, found.message, found.data["error_class"]) == told
        assert connection.closed


def test_a_server_that_is_away_is_a_finding():
    def away():
        raise DeltaForgeError("nobody answers")

    (found,) = checked(away, lambda _: [], translated)

    assert (found.check, found.verdict, found.message) == ("connection", "fail", "nobody answers")
