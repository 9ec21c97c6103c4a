"""What is recorded and logged when a sink is given up."""

import logging

from airflow_provider_deltaforge.engine.base.task_context import TaskContext
from airflow_provider_deltaforge.errors import PositionLostError
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.storage.contract import Write
from airflow_provider_deltaforge.storage.records.gaps import Gaps
from airflow_provider_deltaforge.telemetry.redaction import redacted

_log = logging.getLogger(__name__)


def gap_of(context: TaskContext, sink_id: str, at: Position, error: PositionLostError) -> Write:
    """Return the write that gives a sink up."""
    gaps = Gaps(context.store, context.pipeline.name)
    return gaps.give_up(sink_id, at, redacted(str(error)), error.error_class)


def log_gap(context: TaskContext, sink_id: str, at: Position, error: PositionLostError) -> None:
    """Log what the sink lacks from now on, and the command that lets it go on."""
    _log.error(
        "sink %s is given up: %s. It lacks everything behind %s, until `deltaforge sinks resume %s "
        "%s` lets it go on",
        sink_id,
        redacted(str(error)),
        dict(at),
        context.pipeline.name,
        sink_id,
    )
