"""What Kafka's error codes mean for a batch, and for one message."""

import re
from enum import IntEnum

from airflow_provider_deltaforge.errors import (
    AccessError,
    DeltaForgeError,
    FatalError,
    RetryableError,
)


class KafkaCode(IntEnum):
    """Codes of the protocol, and negative ones of librdkafka.

    Named here as well as in the driver, so that this module needs no driver; a test holds them
    equal.
    """

    UNKNOWN_TOPIC_OR_PART = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_FOR_PARTITION = 6
    MSG_SIZE_TOO_LARGE = 10
    TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    TOPIC_ALREADY_EXISTS = 36
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TRANSACTION_TIMEOUT = 50
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SASL_AUTHENTICATION_FAILED = 58
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    INVALID_RECORD = 87
    PRODUCER_FENCED = 90
    _FENCED = -144
    _PURGE_INFLIGHT = -151
    _PURGE_QUEUE = -152
    _UNSUPPORTED_FEATURE = -165
    _AUTHENTICATION = -169
    _STATE = -172
    _SSL = -181
    _ALL_BROKERS_DOWN = -187
    _UNKNOWN_TOPIC = -188
    _UNKNOWN_PARTITION = -190
    _PARTITION_EOF = -191
    _TRANSPORT = -195


AUTHORISATION = frozenset(
    {
        KafkaCode.TOPIC_AUTHORIZATION_FAILED,
        KafkaCode.CLUSTER_AUTHORIZATION_FAILED,
        KafkaCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)

ACCESS = AUTHORISATION | {
    KafkaCode.SASL_AUTHENTICATION_FAILED,
    KafkaCode.UNSUPPORTED_SASL_MECHANISM,
    KafkaCode.ILLEGAL_SASL_STATE,
    KafkaCode["_AUTHENTICATION"],
    KafkaCode["_SSL"],
}
"""Refused: credentials, permissions or TLS."""

# An endpoint that wants another certificate of ours says so after the handshake; to librdkafka that
# is a connection that broke.
_TLS_ALERT = re.compile(r"SSL alert number (?:4[0-689]|116)\b")


def is_refusal(code: int, text: str) -> bool:
    """Return whether an error of a connection means that we are refused, and not that it broke."""
    return code in ACCESS or _TLS_ALERT.search(text) is not None


SUMMARY = KafkaCode["_ALL_BROKERS_DOWN"]
"""Follows the errors of single brokers, and says less than they do."""

UNKNOWN_TOPIC = frozenset({KafkaCode.UNKNOWN_TOPIC_OR_PART, KafkaCode["_UNKNOWN_TOPIC"]})

UNKNOWN_PARTITION = KafkaCode["_UNKNOWN_PARTITION"]
"""The document's own partitions are more than the topic's."""

NEVER = frozenset({KafkaCode.POLICY_VIOLATION, KafkaCode.UNSUPPORTED_FOR_MESSAGE_FORMAT})
"""No later attempt can succeed, whatever the message."""

REJECTED = {
    KafkaCode.MSG_SIZE_TOO_LARGE: "message_too_large",
    KafkaCode.RECORD_LIST_TOO_LARGE: "message_too_large",
    KafkaCode.TOPIC_EXCEPTION: "routing",
    KafkaCode.INVALID_RECORD: "invalid_record",
}
"""The fault of a message, not of the batch: the kind of its rejection."""

MENDS = {
    "message_too_large": "raise max.message.bytes of the topic, message.max.bytes in client_conf",
    "routing": "correct 'topic', or the processor that routed it",
    "invalid_record": "a compacted topic takes nothing without a key: give 'key', or leave "
    "truncates and schema changes out with filter: {exclude_ops: [truncate, ddl]}",
}
"""By kind, what lets such a message pass."""

FENCED = frozenset(
    {KafkaCode["_FENCED"], KafkaCode.INVALID_PRODUCER_EPOCH, KafkaCode.PRODUCER_FENCED}
)
"""Another producer with the same ``transactional.id`` has begun, or the broker took it for dead."""

NO_TRANSACTIONS = frozenset(
    {KafkaCode["_UNSUPPORTED_FEATURE"], KafkaCode.INVALID_TRANSACTION_TIMEOUT}
)
"""These brokers offer no such transactions."""

PASSING = frozenset(
    {
        SUMMARY,
        KafkaCode["_TRANSPORT"],
        KafkaCode.LEADER_NOT_AVAILABLE,
        KafkaCode.NOT_LEADER_FOR_PARTITION,
        KafkaCode.GROUP_AUTHORIZATION_FAILED,
    }
)
"""What a reader that belongs to no group only waits out."""

ELECTION = frozenset(
    {
        KafkaCode.UNKNOWN_TOPIC_OR_PART,
        KafkaCode.LEADER_NOT_AVAILABLE,
        KafkaCode.NOT_LEADER_FOR_PARTITION,
        KafkaCode.FENCED_LEADER_EPOCH,
        KafkaCode.UNKNOWN_LEADER_EPOCH,
    }
)
"""A broker has not heard yet of a new topic, or of the newest leaders of its partitions."""

PURGED = frozenset({KafkaCode["_PURGE_INFLIGHT"], KafkaCode["_PURGE_QUEUE"]})
"""Of a transaction that failed already, for a reason that another error gives."""


def reaction(code: int, text: str) -> DeltaForgeError:
    """Return the error that the engine acts on.

    Args:
        code: of an error that is about more than one message.
        text: where it came from, and what the driver says.
    """
    if code in ACCESS:
        return AccessError(f"{text}; grant what is missing to this client")
    if code in NEVER:
        return FatalError(f"{text}; change the topic's settings")
    if code == UNKNOWN_PARTITION:
        return RetryableError(
            f"{text}; spec.sharding.count of the document counts more shards than the topic has "
            "partitions: add partitions, or lower it"
        )
    if code in UNKNOWN_TOPIC:
        return RetryableError(
            f"{text}; create the topic, or set create_topics: {{}} to have it made"
        )
    return RetryableError(text)
