"""Settings of a Kafka sink."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, PositiveInt, SecretStr, field_validator, model_validator

from airflow_provider_deltaforge.sinks.contract import Sink, SinkWriter
from airflow_provider_deltaforge.sinks.kafka import msk
from airflow_provider_deltaforge.sinks.kafka.topics import NewTopics
from airflow_provider_deltaforge.sinks.reader_contract import SinkReader
from airflow_provider_deltaforge.spec.choice import refusal

_FOLDER = "airflow_provider_deltaforge.sinks.kafka"
_SECRET = re.compile(r"password|secret|token|\.pem$|jaas|oauthbearer\.config|assertion\.private")
_OURS = re.compile(r"_cb$|^on_delivery$|^logger$|^delivery\.report\.only\.error$")
_IN_TRANSACTIONS = 16_000
_ACKS = {"acks", "request.required.acks"}
_ALL_REPLICAS = {"all", "-1"}
_JAVA_ONLY = (
    "is a setting of Kafka's Java client, which this sink does not use; it is obeyed with "
    f"sasl.mechanism: {msk.MECHANISM} alone"
)


class KafkaSink(Sink):
    """Messages to Kafka topics: idempotent, acknowledged by all replicas."""

    destination_field: ClassVar[str] = "topic"
    key_field: ClassVar[str] = "key"
    takes_partitions: ClassVar[bool] = True
    takes_chunks: ClassVar[bool] = True

    id: str = "kafka"
    """Names the sink in checkpoints, metrics and logs; unique in the pipeline."""
    brokers: str = Field(min_length=1)
    """Bootstrap brokers, ``host:port`` separated by commas."""
    topic: str = Field(min_length=1)
    """Topic, or a template such as ``${source.db}.${source.table}``."""
    key: str | None = None
    """Template of the message key; the row's primary key as JSON if absent."""
    tombstones: bool = False
    """After each delete write a message with the same key and no value, for compacted topics."""
    create_topics: NewTopics | None = None
    """Make topics that do not exist; if absent, that is left to the broker's own settings."""
    exactly_once: bool = False
    """Write each batch in a transaction that also holds the position. Unless ``batch.max_events``
    is given, a batch then holds up to 16,000 events."""
    fencing: Literal["time", "transactions"] = "time"
    """How a driver that was frozen is kept from writing behind its successor: by ``time``, what it
    has begun expires before the successor begins, or by ``transactions``, which cost each batch 10
    to 15 ms and let the brokers refuse it. ``exactly_once`` uses these in any case."""
    positions_topic: str | None = Field(default=None, min_length=1)
    """Compacted topic for the positions of ``exactly_once``, made if it is missing;
    ``_deltaforge.PIPELINE.positions`` if absent."""
    send_timeout_secs: PositiveInt = 30
    """Seconds a batch may take to become durable before the pipeline counts as blocked."""
    client_conf: Mapping[str, str | SecretStr | bool | int | float] = Field(default_factory=dict)
    """Settings of librdkafka; they win over the ones this sink chooses."""

    @field_validator("client_conf", mode="before")
    @classmethod
    def _hide_secrets(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        for key, item in value.items():
            if is_secret(key) and not isinstance(item, str | SecretStr):
                raise ValueError(
                    f"client_conf.{key} may be a secret, which is text; put it in quotes"
                )
        return {
            key: SecretStr(item) if isinstance(item, str) and is_secret(key) else item
            for key, item in value.items()
        }

    @field_validator("client_conf")
    @classmethod
    def _refuse_what_cannot_work(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        at_msk = msk.asks_for_msk(value)
        if at_msk:
            jaas = value.get(msk.JAAS)
            msk.check_msk(value, jaas.get_secret_value() if isinstance(jaas, SecretStr) else jaas)
        for key in value:
            if key in (msk.JAAS, msk.HANDLER) and not at_msk:
                raise ValueError(f"client_conf.{key} {_JAVA_ONLY}")
            if key == "transactional.id":
                raise ValueError(f"client_conf.{key} belongs to the sink; remove it")
            if _OURS.search(key):
                raise ValueError(f"client_conf.{key} takes no value from a document; remove it")
        return value

    @model_validator(mode="after")
    def _check_exactly_once(self) -> "KafkaSink":
        if self.positions_topic is not None and not self.exactly_once:
            raise refusal(("positions_topic",), "has a meaning with exactly_once only")
        what = "exactly_once" if self.exactly_once else "fencing: transactions"
        for key, item in self.client_conf.items() if self.is_transactional else ():
            text = str(item).lower()
            if key in _ACKS and text not in _ALL_REPLICAS:
                raise refusal(("client_conf", key), f"{what} needs acks: all; remove it")
            if key == "enable.idempotence" and text != "true":
                raise refusal(("client_conf", key), f"{what} needs idempotence; remove it")
        return self

    @property
    def holds_position(self) -> bool:
        """Whether the document asks for exactly once."""
        return self.exactly_once

    @property
    def writes_tombstones(self) -> bool:
        """Whether the document asks for tombstones."""
        return self.tombstones

    @property
    def is_transactional(self) -> bool:
        """Whether every batch is a transaction."""
        return self.exactly_once or self.fencing == "transactions"

    def without_position(self) -> "KafkaSink":
        """Return the description for what has no position; the brokers fence that as well."""
        if not self.exactly_once:
            return self
        # The topic of positions stays: the marks of chunks are there.
        return self.model_copy(update={"exactly_once": False, "fencing": "transactions"})

    @property
    def batch_events(self) -> int:
        """As each transaction waits for the brokers, however few messages are in it."""
        return _IN_TRANSACTIONS if self.is_transactional else 0

    def dataset(self) -> tuple[str, str]:
        """Return how lineage calls what it writes to."""
        return f"kafka://{self.brokers.partition(',')[0].strip()}", self.topic

    def open(self, pipeline: str) -> SinkWriter:
        """Connect; a broker that is away is left to the first write.

        Raises:
            SpecError: a setting in ``client_conf`` is unknown or wrong, or the extra is missing.
            AccessError: the brokers refuse the credentials.
        """
        place = "writer:KafkaWriter"
        if self.is_transactional:
            place = "once:KafkaOnceWriter" if self.exactly_once else "once:KafkaTransactionWriter"
        writer: SinkWriter = self._connected(f"{_FOLDER}.{place}", pipeline, "kafka")
        return writer

    def open_reader(self, pipeline: str) -> SinkReader:
        """Connect for reading topics back."""
        reader: SinkReader = self._connected(f"{_FOLDER}.reader:KafkaReader", pipeline, "kafka")
        return reader


def is_secret(key: str) -> bool:
    """Return whether a setting of librdkafka may hold a secret."""
    return _SECRET.search(key) is not None
