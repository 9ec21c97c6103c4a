"""Metrics of sinks, and of their clients and encodings."""

from collections.abc import Callable, Iterator

from airflow_provider_deltaforge.control.metrics.metric import (
    MetricRow,
    Observed,
    Sample,
    Value,
    seconds,
)
from airflow_provider_deltaforge.control.metrics.pipelines import checkpoint_age_s
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.storage.records.measurements import SinkGauges, SinkMeasurements
from airflow_provider_deltaforge.storage.records.stats import SinkProgress

_SINK = ("sink",)
_STANDING = {"behind": 0.5, "catching_up": 0.5, "given_up": 0.0}
_ROUTING = "routing"


def _of_sinks(
    value: Callable[[SinkProgress], float | None],
) -> Callable[[Observed], Iterator[Sample]]:
    def samples(observed: Observed) -> Iterator[Sample]:
        for sink_id, sink in observed.status.sinks.items():
            yield (sink_id,), value(sink)

    return samples


def _measured(
    value: Callable[[SinkMeasurements], Value],
) -> Callable[[Observed], Iterator[Sample]]:
    def samples(observed: Observed) -> Iterator[Sample]:
        for sink_id, sink in observed.counts.sinks.items():
            yield (sink_id,), value(sink)

    return samples


def _gauges(value: Callable[[SinkGauges], float | None]) -> Callable[[Observed], Iterator[Sample]]:
    def samples(observed: Observed) -> Iterator[Sample]:
        for sink_id, sink in observed.gauges.sinks.items():
            yield (sink_id,), value(sink)

    return samples


def _encodings(prefix: str) -> Callable[[Observed], Iterator[Sample]]:
    """Return what encodings count under names that begin so; the rest of the name is a label."""

    def samples(observed: Observed) -> Iterator[Sample]:
        for sink_id, sink in observed.counts.sinks.items():
            for what, count in sink.encoding.items():
                if what.startswith(prefix):
                    yield (sink_id, what.removeprefix(prefix)), count

    return samples


def _errors(observed: Observed) -> Iterator[Sample]:
    if observed.measured is None:
        return
    for sink_id in observed.status.sinks:
        sink = observed.counts.sinks.get(sink_id, SinkMeasurements())
        for kind, count in ({RetryableError.error_class: 0} | sink.errors).items():
            yield (sink_id, kind), count


def _routing_errors(observed: Observed) -> Iterator[Sample]:
    counts: dict[str, int] = {}
    for series in observed.status.dlq.events:
        if series.error_kind == _ROUTING and series.sink:
            counts[series.sink] = counts.get(series.sink, 0) + series.count
    for sink_id, count in counts.items():
        yield (sink_id, _ROUTING), count


def _statuses(observed: Observed) -> Iterator[Sample]:
    if observed.measured is None:
        return
    for sink_id, sink in observed.status.sinks.items():
        required = "true" if sink_id in observed.measured.required else "false"
        yield (sink_id, required), 0.0 if sink.error_class else 1.0


def _checkpoint_ages(observed: Observed) -> Iterator[Sample]:
    for sink_id, sink in observed.status.sinks.items():
        yield (sink_id,), checkpoint_age_s(observed, sink.checkpoint_ms)


ROWS: tuple[MetricRow, ...] = (
    MetricRow("sink_events", "counter", "Events durable.", _SINK, _of_sinks(lambda s: s.events)),
    MetricRow("sink_bytes", "counter", "Bytes durable.", _SINK, _of_sinks(lambda s: s.bytes)),
    MetricRow("sink_batch", "counter", "Batches durable.", _SINK, _of_sinks(lambda s: s.batches)),
    MetricRow(
        "sink_latency_seconds",
        "histogram",
        "Writing one batch until it was durable.",
        _SINK,
        _measured(lambda sink: sink.latency),
    ),
    MetricRow("sink_retries", "counter", "Writes repeated.", _SINK, _of_sinks(lambda s: s.retries)),
    MetricRow(
        "sink_errors",
        "counter",
        "Writes that failed, by error class; retryable ones were tried again.",
        ("sink", "kind"),
        _errors,
    ),
    MetricRow(
        "sink_routing_errors",
        "counter",
        "Events set aside because no destination could be made for them.",
        ("sink", "kind"),
        _routing_errors,
    ),
    MetricRow(
        "sink_reconnects",
        "counter",
        "Times that a sink took batches again after a failure.",
        _SINK,
        _measured(lambda sink: sink.reconnects),
    ),
    MetricRow(
        "coordinator_sink_timeout",
        "counter",
        "Batches that took longer than sink_batch_deadline_secs.",
        _SINK,
        _measured(lambda sink: sink.timeouts),
    ),
    MetricRow(
        "sink_last_checkpoint_ts",
        "gauge",
        "When its checkpoint was stored, in seconds since the epoch.",
        _SINK,
        _of_sinks(lambda sink: seconds(sink.checkpoint_ms)),
    ),
    MetricRow(
        "sink_checkpoint_age_seconds",
        "gauge",
        "Age of its checkpoint; it grows while the source writes nothing, too.",
        _SINK,
        _checkpoint_ages,
    ),
    MetricRow(
        "sink_checkpoint_status",
        "gauge",
        "1 while the sink takes batches, 0 while it is behind an error.",
        ("sink", "required"),
        _statuses,
    ),
    MetricRow(
        "sink_lag_seconds",
        "gauge",
        "How long ago the oldest event was committed that a sink lacks which is behind.",
        _SINK,
        _of_sinks(lambda sink: seconds(sink.lag_ms)),
    ),
    MetricRow(
        "sink_standing",
        "gauge",
        "1 with the others, 0.5 behind and caught up, 0 given up.",
        _SINK,
        _of_sinks(lambda sink: _STANDING.get(sink.status, 1.0)),
    ),
    MetricRow(
        "sink_buffer_messages",
        "gauge",
        "Messages given to the sink's client that are not durable yet.",
        _SINK,
        _gauges(lambda sink: sink.buffer_messages),
    ),
    MetricRow(
        "sink_buffer_bytes",
        "gauge",
        "Bytes of these messages.",
        _SINK,
        _gauges(lambda sink: sink.buffer_bytes),
    ),
    MetricRow(
        "sink_txn_commits",
        "counter",
        "Transactions committed; without transactions, batches durable together with their "
        "position. Of sinks with exactly_once or fencing: transactions.",
        _SINK,
        _measured(lambda sink: sink.counts.get("txn_commits")),
    ),
    MetricRow(
        "sink_txn_aborts",
        "counter",
        "Transactions aborted, or batches refused, of these sinks.",
        _SINK,
        _measured(lambda sink: sink.counts.get("txn_aborts")),
    ),
    MetricRow(
        "kafka_produce_retries",
        "counter",
        "Requests that the producer sent again by itself.",
        _SINK,
        _measured(lambda sink: sink.counts.get("produce_retries")),
    ),
    MetricRow(
        "kafka_producer_queue_messages",
        "gauge",
        "Messages in the producer's queue behind the last batch.",
        _SINK,
        _gauges(lambda sink: sink.client.get("queue_messages")),
    ),
    MetricRow(
        "kafka_producer_queue_bytes",
        "gauge",
        "Bytes of these messages.",
        _SINK,
        _gauges(lambda sink: sink.client.get("queue_bytes")),
    ),
    MetricRow(
        "avro_encode",
        "counter",
        "Messages encoded by the table's columns (ddl), or by what they hold (inferred).",
        ("sink", "path"),
        _encodings("encoded:"),
    ),
    MetricRow(
        "avro_schema_registrations",
        "counter",
        "Schemas that the registry was asked to keep, and gave an id.",
        _SINK,
        _measured(lambda sink: sink.encoding.get("registered")),
    ),
    MetricRow(
        "avro_encode_failure",
        "counter",
        "Messages not encoded: sr_unavailable (tried again), schema_mismatch, unreadable.",
        ("sink", "reason"),
        _encodings("failed:"),
    ),
)
