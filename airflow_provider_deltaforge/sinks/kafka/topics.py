"""Which topics can be written to: asked for at first use, and made where that is wanted."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
from pydantic import Field, PositiveInt

from airflow_provider_deltaforge.errors import FatalError
from airflow_provider_deltaforge.events.message import Messages
from airflow_provider_deltaforge.sinks.kafka import error_codes
from airflow_provider_deltaforge.sinks.kafka.error_codes import KafkaCode
from airflow_provider_deltaforge.spec.settings import Settings

_ASK_S, _LOOK_S, _MAKE_S, _UNKNOWN_S, _PAUSE_S = 1.0, 0.5, 5.0, 5.0, 0.05
_OF_CONNECTIONS = (
    "security.",
    "sasl.",
    "ssl.",
    "enable.ssl",
    "https.",
    "socket.",
    "broker.",
    "oauth_cb",
)
_SHOWN_MAX = 5


class NewTopics(Settings):
    """How topics are made that do not exist yet."""

    partitions: PositiveInt | None = None
    """Partitions of each; the cluster's default if absent."""
    replication_factor: PositiveInt | None = None
    """Copies of each; the cluster's default if absent."""
    config: Mapping[str, str | bool | int | float] = Field(default_factory=dict)
    """Settings of each, such as ``cleanup.policy: compact``."""


class Topics:
    """What is known of topics. Used by one thread.

    Args:
        kafka: the driver.
        settings: of the producer.
        wanted: how to make what is missing; None leaves that to the broker.
        where: how messages for people name the sink.
        refuse: raises the error that the engine acts on, for errors of the driver and a topic.
    """

    def __init__(
        self,
        kafka: Any,
        settings: Mapping[str, Any],
        wanted: NewTopics | None,
        where: str,
        refuse: Callable[[list[Any], str], NoReturn],
    ) -> None:
        self._kafka = kafka
        self._settings = settings
        self._wanted = wanted
        self._where = where
        self._refuse = refuse
        self._known: dict[str, Any] = {}

    def get(self, name: str) -> Any:
        """Return why the name of a topic is refused, or None."""
        return self._known.get(name)

    def clear(self) -> None:
        """Ask again for every topic."""
        self._known.clear()

    def find(self, producer: Any, messages: Messages, wait: Callable[[], None]) -> None:
        """Make sure that every topic exists; the broker creates it now if it may.

        Args:
            producer: asks.
            messages: name the topics.
            wait: called between two looks; raises when there is a reason to give up.
        """
        if all(name in self._known for name in messages.topics.dictionary.to_pylist()):
            return
        named = _named(messages)
        # The driver cannot even pass such a name on.
        illegal = self._kafka.KafkaError(KafkaCode.TOPIC_EXCEPTION, "holds a NUL character")
        self._known.update({name: illegal for name in named if "\0" in name})
        new = [name for name in named if name not in self._known]
        if new and self._wanted is not None:
            self._make(self._wanted, new)
        for name in new:
            self._known[name] = self._find(producer, name, wait)

    def without_leader(self, producer: Any, messages: Messages) -> str:
        """Return words about partitions that nobody leads now; empty if none is known."""
        lost = []
        named = [name for name in _named(messages) if self.get(name) is None]
        for name in named[:_SHOWN_MAX]:
            try:
                partitions = producer.list_topics(name, timeout=_LOOK_S).topics[name].partitions
            except self._kafka.KafkaException:
                return ""  # No broker answers, which is said already.
            lost += [
                f"{name} [{number}]"
                for number, partition in partitions.items()
                if partition.leader < 0
            ]
        if not lost:
            return ""
        return (
            f"; no broker leads {', '.join(lost[:_SHOWN_MAX])}: bring the broker or its log "
            "directory back"
        )

    def _find(self, producer: Any, name: str, wait: Callable[[], None]) -> Any:
        """Return None for a topic that can be written, or why its name is refused."""
        patience = time.monotonic() + _UNKNOWN_S
        while True:
            error = self._ask(producer, name)
            if error is None or error.code() == KafkaCode.TOPIC_EXCEPTION:
                return error
            if error.code() in error_codes.AUTHORISATION:
                self._refuse([error], name)
            if error.code() in error_codes.UNKNOWN_TOPIC and time.monotonic() > patience:
                other = self._colliding(producer, name)
                if other is None:
                    self._refuse([error], name)
                text = f"the name collides with that of topic {other!r}: '.' and '_' are alike"
                return self._kafka.KafkaError(KafkaCode.TOPIC_EXCEPTION, text)
            wait()
            time.sleep(_PAUSE_S)

    def _colliding(self, producer: Any, name: str) -> str | None:
        """Return the topic because of which brokers never make one of this name.

        The names of their metrics hold ``_`` for every ``.``; to who writes they say nothing of it.
        """
        try:
            there = producer.list_topics(timeout=_ASK_S).topics
        except self._kafka.KafkaException:
            return None
        alike = name.replace(".", "_")
        found = (other for other in there if other != name and other.replace(".", "_") == alike)
        return next(found, None)

    def _ask(self, producer: Any, topic: str) -> Any:
        try:
            return producer.list_topics(topic, timeout=_ASK_S).topics[topic].error
        except self._kafka.KafkaException as error:
            return error.args[0]

    def _make(self, wanted: NewTopics, names: Sequence[str]) -> None:
        """Make topics; one that is there stays as it is."""
        from confluent_kafka.admin import AdminClient, NewTopic

        codes = self._kafka.KafkaError
        config = {key: _text(value) for key, value in wanted.config.items()}
        partitions, copies = wanted.partitions or -1, wanted.replication_factor or -1
        new = [NewTopic(name, partitions, copies, config=config) for name in names]
        # For a moment: a producer cannot say how a topic is to be made.
        admin = AdminClient(of_connections(self._settings))
        for name, made in admin.create_topics(new, request_timeout=_MAKE_S).items():
            try:
                made.result()
            except self._kafka.KafkaException as error:
                cause = error.args[0]
                if cause.code() in {codes.TOPIC_ALREADY_EXISTS, codes.TOPIC_EXCEPTION}:
                    continue  # An illegal name is an error for whoever writes to it.
                if cause.code() in _never(codes):
                    raise FatalError(
                        f"{self._where}: topic {name!r} cannot be made: {cause.str()}; correct "
                        "create_topics"
                    ) from error
                self._refuse([cause], name)


def of_connections(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a producer's settings say about connections, for a client of another kind."""
    kept = {"bootstrap.servers", "client.id", "log_level"}
    return {
        key: value
        for key, value in settings.items()
        if key in kept or key.startswith(_OF_CONNECTIONS)
    }


def _named(messages: Messages) -> list[str]:
    """Return the topics that messages go to."""
    names = messages.topics.dictionary.to_pylist()
    return [names[code] for code in np.unique(np.asarray(messages.topics.indices))]


def _never(codes: Any) -> frozenset[int]:
    """Return the errors that no later attempt can avoid."""
    return frozenset(
        {
            codes.INVALID_CONFIG,
            codes.INVALID_PARTITIONS,
            codes.INVALID_REPLICATION_FACTOR,
            codes.INVALID_REQUEST,
            codes.POLICY_VIOLATION,
        }
    )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
