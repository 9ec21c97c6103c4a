"""The blocks of the document beside source, processors and sinks: batching, commits, state."""

import re
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit

from pydantic import Field, NonNegativeInt, PositiveInt, SecretStr, field_validator, model_validator

from airflow_provider_deltaforge.plugins import STORES
from airflow_provider_deltaforge.spec.choice import refusal
from airflow_provider_deltaforge.spec.settings import Settings


class Batch(Settings):
    """When a batch is closed; whichever limit is reached first."""

    max_events: PositiveInt = 2000
    """Events in one batch."""
    max_bytes: PositiveInt = 16 * 2**20
    """Bytes in one batch."""
    max_ms: PositiveInt = 50
    """How long an event waits for others while sinks are busy, in milliseconds; an idle sink is
    given at once what there is."""
    respect_source_tx: bool = True
    """Keep the events of a source transaction in one batch, whatever the limits say."""
    max_transaction_bytes: PositiveInt = 8 * 2**20
    """A transaction of more bytes of log is split all the same; a row counts as 128 at least.
    Memory grows with it: a delivery takes up to twenty times as much."""
    max_inflight: PositiveInt = 1
    """Closed batches that may wait for delivery."""


class CommitPolicy(Settings):
    """Which sinks must hold a batch before the pipeline goes on."""

    mode: Literal["required", "all", "quorum"] = "required"
    """``required``: every sink marked so; ``all``: every sink; ``quorum``: so many of them."""
    quorum: PositiveInt | None = None
    """How many sinks are enough; only with mode ``quorum``, and needed there."""

    @model_validator(mode="after")
    def _check_quorum(self) -> "CommitPolicy":
        if self.mode == "quorum" and self.quorum is None:
            raise refusal(("quorum",), "mode 'quorum' needs the number of sinks that are enough")
        if self.mode != "quorum" and self.quorum is not None:
            raise refusal(("quorum",), f"has a meaning with mode 'quorum' only, not {self.mode!r}")
        return self


class DeadLetterSettings(Settings):
    """How many events may be set aside, and for how long."""

    max_entries: PositiveInt = 10_000
    """Events kept."""
    max_age_secs: NonNegativeInt = 604_800
    """How long an event is kept while the pipeline runs, in seconds; 0 keeps it for good."""
    overflow_policy: Literal["drop_oldest", "reject", "block"] = "drop_oldest"
    """With a full queue: ``drop_oldest`` makes room, ``reject`` counts the new event and loses it,
    ``block`` stops until somebody makes room."""
    hold_keys: bool = False
    """Set later events of a row aside as well, so that all can be sent again in order."""


class Journal(Settings):
    """The dead-letter queue; without it an undeliverable event stops the pipeline."""

    enabled: bool = False
    """Set undeliverable events aside, and go on."""
    max_event_bytes: PositiveInt = 262_144
    """Of an event longer than this, the entry holds neither image nor statement."""
    dlq: DeadLetterSettings = DeadLetterSettings()
    """Limits of the queue."""


class Sharding(Settings):
    """How messages are spread downstream."""

    mode: Literal["hash"]
    """``hash``: by Kafka's hash (murmur2) of the sharding key, so that equal keys stay together."""
    count: int | None = Field(default=None, ge=1, le=2**31 - 1)
    """Number of shards, counted from 0: Kafka messages go to the partition of that number, and
    ``${shard}`` is the number in topics, streams, subjects, URLs and paths."""
    key: str | None = Field(default=None, min_length=1)
    """What to shard by: a column, or a template such as ``${after.region}-${after.customer}``; the
    message's key if absent. It is the message key of sinks without ``key``, too."""

    @property
    def key_template(self) -> str | None:
        """The template of the sharding key; None where that is the key of the message."""
        return self.key if self.key is None or "${" in self.key else f"${{after.{self.key}}}"


class ConnectionLimits(Settings):
    """How many connections to the source."""

    max_dedicated_per_source: PositiveInt | None = None
    """The most connections at a time that the stream and copies of tables have at the source. What
    the stream may need is set aside; as many as are left read rows."""


class ConnectionPolicy(Settings):
    """How to connect to the source."""

    default_mode: Literal["dedicated"] = "dedicated"
    """Each pipeline has connections of its own. ``shared`` is refused: a driver is a process, and
    a server sends its log to one reader."""
    preferred_replica: SecretStr | None = None
    """The replica that rows of tables are copied from: ``HOST`` or ``HOST:PORT``, with the rest as
    at the source, or an address of its own. The log is followed at the source."""
    limits: ConnectionLimits = ConnectionLimits()
    """How many connections."""

    @field_validator("default_mode", mode="before")
    @classmethod
    def _not_shared(cls, value: Any) -> Any:
        if value == "shared":
            raise ValueError(
                "connections cannot be shared: the driver of each pipeline is a process of its "
                "own, and a server sends its log to one reader; take the key out, and see "
                "limits.max_dedicated_per_source for fewer connections"
            )
        return value


class DeliverySettings(Settings):
    """How the stream is carried."""

    parallelism: int = Field(default=1, ge=1, le=64)
    """Parts of each batch that are processed, and written, at the same time; a key is always in one
    part, so that its events stay in order."""


class Trigger(Settings):
    """How long Spark lets one task run."""

    window: PositiveInt = 600
    """Length of a window of work, in seconds; delivery does not wait for its end, and it ends
    between two batches."""


_UNPROVEN_STORES = ("gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")
S3_OPTIONS = ("region", "scheme", "endpoint_override")
"""What an address of an S3 bucket may say behind its question mark."""
_SECRET_PARAMETER = re.compile(r"secret|token|key|passw|sig$", re.IGNORECASE)


class ArchiveSettings(Settings):
    """Keeping the source's log as Parquet files, for longer than the source does."""

    directory: str
    """An absolute path, or an address such as ``s3://bucket/folder?region=eu-central-1``. Each
    pipeline has a folder of its name in it. Credentials come from the environment of the driver."""
    retention_days: PositiveInt | None = None
    """Days that changes are kept, by their commit; without it for good."""
    flush_secs: PositiveInt = 60
    """How long changes wait at most until they are written; the source keeps them until then."""
    flush_bytes: PositiveInt = 16 * 2**20
    """So many bytes in memory are written without waiting. Up to four times as many may wait while
    the directory is away; then delivery waits, too."""

    @field_validator("directory")
    @classmethod
    def _check_directory(cls, value: str) -> str:
        if value.startswith("/") or "${" in value:
            return value
        parts = urlsplit(value)
        if parts.scheme in _UNPROVEN_STORES:
            raise ValueError(
                f"{parts.scheme}:// is not supported: mount the store and name the path, or use "
                "its S3 interface as s3://bucket/folder?endpoint_override=host"
            )
        if parts.scheme not in ("file", "s3") or "://" not in value:
            raise ValueError(
                "needs an absolute path, or an address that begins with file:/// or s3://"
            )
        names = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
        if "@" in parts.netloc or any(map(_SECRET_PARAMETER.search, names)):
            raise ValueError(
                "holds credentials; take them out and let drivers find them in their environment, "
                "as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or a role"
            )
        known = S3_OPTIONS if parts.scheme == "s3" else ()
        if unknown := [name for name in names if name not in known]:
            raise ValueError(
                f"has unknown options {', '.join(map(repr, unknown))} behind its question mark "
                f"(known: {', '.join(known) or 'none'})"
            )
        if bool(parts.netloc) != (parts.scheme == "s3"):
            raise ValueError("needs a bucket, as s3://bucket/folder, or a path, as file:///folder")
        return value


class StorageSettings(Settings):
    """Where the pipeline's state is kept."""

    backend: str
    """``sqlite``, ``postgres``, ``memory``, or the name of an installed one."""
    path: str | None = None
    """File of the ``sqlite`` backend."""
    dsn: SecretStr | None = None
    """Address of the ``postgres`` backend, or of an installed one."""

    @field_validator("backend")
    @classmethod
    def _check_backend(cls, value: str) -> str:
        if value not in STORES.names():
            raise ValueError(f"unknown backend {value!r} (known: {', '.join(STORES.names())})")
        return value

    @model_validator(mode="after")
    def _check_place(self) -> "StorageSettings":
        if self.backend == "postgres" and self.dsn is None:
            raise refusal(("dsn",), "backend 'postgres' needs it")
        if self.backend in {"sqlite", "memory"} and self.dsn is not None:
            raise refusal(("dsn",), f"has no meaning with backend {self.backend!r}")
        if self.backend != "sqlite" and self.path is not None:
            raise refusal(("path",), f"has no meaning with backend {self.backend!r}")
        return self
