"""When a sink is given up that is behind, and what is told and recorded of that."""

import logging

from airflow_provider_deltaforge.engine.job import Bench
from airflow_provider_deltaforge.errors import PositionLostError
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.sinks.contract import Sink
from airflow_provider_deltaforge.storage.contract import Write
from airflow_provider_deltaforge.storage.gaps import Gaps
from airflow_provider_deltaforge.telemetry.redaction import redacted

_log = logging.getLogger(__name__)


def too_late(sink: Sink, lag_ms: int | None) -> str | None:
    """Say why a sink is to be given up that lacks changes for so long; None: it is not."""
    limit_s = sink.lag_limit_secs
    if not limit_s or lag_ms is None or lag_ms <= limit_s * 1000:
        return None
    return f"it has lacked changes for more than {limit_s} s (lag_limit_secs)"


def gap_of(bench: Bench, sink_id: str, at: Position, error: PositionLostError) -> Write:
    """Return the write that gives a sink up."""
    gaps = Gaps(bench.store, bench.pipeline.name)
    return gaps.give_up(sink_id, at, redacted(str(error)), error.error_class)


def tell_given_up(bench: Bench, sink_id: str, at: Position, error: PositionLostError) -> None:
    """Say loudly what it lacks from now on, and how it goes on."""
    _log.error(
        "sink %s is given up: %s. It lacks everything behind %s, until `deltaforge sinks resume %s "
        "%s` lets it go on",
        sink_id,
        redacted(str(error)),
        dict(at),
        bench.pipeline.name,
        sink_id,
    )
