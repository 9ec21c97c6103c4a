"""From a description to librdkafka's settings."""

import logging
import re
from collections.abc import Mapping
from typing import Any

from pydantic import SecretStr

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.sinks.kafka import msk
from airflow_provider_deltaforge.sinks.kafka.sink import KafkaSink

log = logging.getLogger(__name__)

# librdkafka knows these settings under two names, and does not say which of the two wins.
_ALIASES = {
    "compression.codec": "compression.type",
    "delivery.timeout.ms": "message.timeout.ms",
    "max.in.flight.requests.per.connection": "max.in.flight",
    "message.send.max.retries": "retries",
    "metadata.broker.list": "bootstrap.servers",
    "queue.buffering.max.ms": "linger.ms",
    "request.required.acks": "acks",
    "sasl.mechanisms": "sasl.mechanism",
}
_UNLIMITED_RETRIES = 2_147_483_647
_MESSAGE_MS, _TRANSACTION_MS = 30_000, 60_000
_EXPIRY_S = 30.0
_STATISTICS_MS = 5_000
_SILENT_MS_MIN, _SILENT_MS_MAX = 100, 60_000
TRANSACTIONAL = "deltaforge-"
"""What the ids of producers with transactions begin with."""
TRANSACTIONS = {
    "enable.idempotence": "true",
    "acks": "all",
    "max.in.flight": 5,
    "message.timeout.ms": _MESSAGE_MS,
    "transaction.timeout.ms": _TRANSACTION_MS,
    "request.timeout.ms": 15_000,
}
"""What a producer needs to shut another one out."""
_ALL_REPLICAS = {"all", "-1"}
_NAMED = re.compile(r"[\"`]([a-z][a-z0-9_.]+)[\"`]|\b((?:[a-z0-9_]+\.)+[a-z]+)\b")


def producer_settings(sink: KafkaSink, pipeline: str = "") -> dict[str, Any]:
    """Return what the producer is made with, the document's own settings last."""
    own = _own_settings(sink)
    if not sink.is_transactional:
        own.pop("message.timeout.ms", None)
    chosen: dict[str, Any] = {
        "bootstrap.servers": sink.brokers,
        "client.id": f"deltaforge-{sink.id}",
        "acks": "all",
        "enable.idempotence": "true",
        "max.in.flight": 5,
        "retries": _UNLIMITED_RETRIES,
        "retry.backoff.ms": 100,
        "request.timeout.ms": 30_000,
        # A message that expired alone would let a later one of its key overtake it. So none ever
        # expires: the writer bounds the whole batch instead.
        "message.timeout.ms": 0,
        "topic.metadata.propagation.max.ms": 5_000,
        "compression.type": "lz4",
        "linger.ms": 5,
        "batch.size": 1_048_576,
        "socket.keepalive.enable": "true",
        "reconnect.backoff.max.ms": 1_000,
        "statistics.interval.ms": _STATISTICS_MS,
        # Its errors arrive as callbacks and end up in ours; a line per attempt would only be noise.
        "log_level": 2,
        # The Java client's choice of partition, so that other producers agree with this one.
        "partitioner": "murmur2_random",
    }
    if not _idempotent(own):
        chosen["enable.idempotence"] = "false"
        # Without idempotence a retry may land behind later messages, unless there are none.
        chosen["max.in.flight"] = 1
        log.warning(
            "kafka sink gives up idempotence because of client_conf: a broker failure can lose "
            "or repeat messages, and change their order",
            extra={"sink": sink.id, "acks": own.get("acks")},
        )
    if sink.is_transactional:
        chosen |= _of_transactions(sink, pipeline, own)
    else:
        # A connection without answers ends before its messages expire, and these go through a new
        # one: the producer that gave them up would go on waiting at the old one.
        half_ms = int(expiry_s(sink) * 500)
        chosen["socket.timeout.ms"] = max(_SILENT_MS_MIN, min(half_ms, _SILENT_MS_MAX))
    settings = {**chosen, **own}
    if msk.asks_for_msk(settings):
        settings = msk.with_tokens(sink.id, sink.brokers, settings)
    return settings


def _of_transactions(sink: KafkaSink, pipeline: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return what makes the producer transactional.

    A message may expire here: its transaction is aborted, so that no later one overtakes it. It
    must do so before the transaction itself does, or librdkafka refuses the settings.
    """
    longest_ms = _MESSAGE_MS
    if "transaction.timeout.ms" not in own:  # Else that bounds how long a message may take.
        longest_ms = max(longest_ms, sink.send_timeout_secs * 1000)
    message_ms = own.get("message.timeout.ms", longest_ms)
    transaction_ms = _TRANSACTION_MS
    if str(message_ms).isdigit() and int(message_ms) > transaction_ms:
        transaction_ms = int(message_ms)
        if "transaction.timeout.ms" not in own:
            is_own = "message.timeout.ms" in own
            log.info(
                "kafka sink raises transaction.timeout.ms to %s",
                f"client_conf.{_as_written(sink, 'message.timeout.ms')}"
                if is_own
                else "send_timeout_secs",
                extra={"sink": sink.id, "transaction_timeout_ms": transaction_ms},
            )
    return {
        "transactional.id": f"{TRANSACTIONAL}{pipeline}/{sink.id}",
        "transaction.timeout.ms": transaction_ms,
        "message.timeout.ms": longest_ms,
        "request.timeout.ms": 15_000,
    }


def patience_s(sink: KafkaSink) -> float:
    """Return how long one batch may take: the shorter of the two timeouts a document can set."""
    own = _own_settings(sink).get("message.timeout.ms")
    if own is None:
        return float(sink.send_timeout_secs)
    try:
        own_s = float(own) / 1000
    except ValueError as error:
        raise SpecError(
            f"sink {sink.id}: client_conf.{_as_written(sink, 'message.timeout.ms')} must be a "
            "number of milliseconds"
        ) from error
    return min(own_s, sink.send_timeout_secs) if own_s > 0 else float(sink.send_timeout_secs)


def expiry_s(sink: KafkaSink) -> float:
    """Return after how long a message expires where no transaction fences it.

    That bounds what a frozen producer still sends when it wakes up.
    """
    own = "message.timeout.ms" in _own_settings(sink)
    return patience_s(sink) if own else max(_EXPIRY_S, patience_s(sink))


def refusal(sink: KafkaSink, error: Exception) -> SpecError:
    """Return an error that names the key of the document which librdkafka does not take.

    Args:
        sink: The description the settings came from.
        error: What the driver raised; librdkafka's own words are inside.
    """
    inner = error.args[0] if error.args else error
    reason = scrub(sink, (inner.str() if hasattr(inner, "str") else str(inner)).strip())
    named = [quoted or dotted for quoted, dotted in _NAMED.findall(reason)]
    written = {_ALIASES.get(key, key): key for key in sink.client_conf}
    for name in named:
        canonical = _ALIASES.get(name, name)
        if canonical in written:
            return SpecError(f"sink {sink.id}: client_conf.{written[canonical]}: {reason}")
    return SpecError(f"sink {sink.id}: client_conf: {reason}")


def scrub(sink: KafkaSink, text: str) -> str:
    """Return ``text`` without any secret of ``client_conf``."""
    for value in sink.client_conf.values():
        if isinstance(value, SecretStr) and value.get_secret_value():
            text = text.replace(value.get_secret_value(), "***")
    return text


def _own_settings(sink: KafkaSink) -> dict[str, Any]:
    own: dict[str, Any] = {}
    for key, value in sink.client_conf.items():
        name = _ALIASES.get(key, key)
        if name in own:
            raise SpecError(
                f"sink {sink.id}: client_conf.{key} and {_as_written(sink, name)} are the same "
                "setting; keep one"
            )
        own[name] = _plain(value)
    return own


def _plain(value: Any) -> Any:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    return str(value).lower() if isinstance(value, bool) else value


def _idempotent(own: Mapping[str, Any]) -> bool:
    if "enable.idempotence" in own:
        return str(own["enable.idempotence"]).lower() == "true"
    return str(own.get("acks", "all")) in _ALL_REPLICAS


def _as_written(sink: KafkaSink, name: str) -> str:
    return next(key for key in sink.client_conf if _ALIASES.get(key, key) == name)
