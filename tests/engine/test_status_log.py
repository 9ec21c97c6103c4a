"""A driver's log says how its pipeline is, when that changes."""

import logging

from airflow_provider_deltaforge.engine.base.heartbeat import StatusLog
from airflow_provider_deltaforge.storage.records.control import Progress


def progress(status, reason=None, error_class=None):
    return Progress(
        status=status,
        since_ms=1,
        epoch=1,
        generation=1,
        heartbeat_at_ms=1,
        reason=reason,
        error_class=error_class,
    )


def test_each_change_is_a_line_and_a_reason_holds_no_password(caplog):
    caplog.set_level(logging.INFO)
    log = StatusLog()
    away = "sink out: kafka://u:hunter2@k is away"
    for status, reason, error_class in (
        ("starting", None, None),
        ("running", None, None),
        ("running", None, None),
        ("blocked", away, "retryable"),
        ("blocked", away, "retryable"),
        ("running", None, None),
    ):
        log.note(progress(status, reason, error_class))
    lines = [
        (record.levelname, record.getMessage().rpartition(" ")[2]) for record in caplog.records
    ]
    assert lines == [
        ("INFO", "starting"),
        ("INFO", "running"),
        ("WARNING", "blocked"),
        ("INFO", "running"),
    ]
    assert "is away" in caplog.records[2].reason
    assert "hunter2" not in caplog.records[2].reason
