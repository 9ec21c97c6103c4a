"""What every encoding promises."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, TypeAlias

import pyarrow as pa

from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.events.message import Rejection
from airflow_provider_deltaforge.events.schema import TableSchema, TypeSystem
from airflow_provider_deltaforge.events.shapes import Shape
from airflow_provider_deltaforge.spec.settings import PluginSettings

Schemas: TypeAlias = Callable[[str, str | None, str, str | None], TableSchema | None]
"""From database, schema, table and fingerprint to the table as it was; None if nobody knows it.

Without a fingerprint, or with one that nobody knows any more, as it was registered last.

Raises:
    RetryableError: the state store is away.
"""


@dataclass(frozen=True, slots=True)
class EncoderRequest:
    """What the messages of one sink are.

    Attributes:
        sink: names the sink in errors.
        connector: the source's name in events, a part of the names of schemas.
        shape: what the envelope's messages look like; None if it does not say.
        schemas: finds a table's schema.
        type_system: whose names the types of columns have.
        counts: what the worker counts, for metrics: ``encoded:PATH`` messages, ``registered``
            schemas, and messages that failed, ``failed:REASON``.
    """

    sink: str
    connector: str
    shape: Shape | None
    schemas: Schemas
    type_system: TypeSystem = "mysql"
    counts: Counter[str] = field(default_factory=Counter)


class UnaskedError(RetryableError):
    """A server would have to be asked, and was not: see ``Bodies.asks``."""


@dataclass(frozen=True, slots=True)
class Bodies:
    """A batch of messages before they are encoded; all columns have the same length.

    Attributes:
        values: binary. One JSON text per message, as the envelope wrote it.
        topics: dictionary<int32, utf8>. Where each goes.
        rows: the change events they stand for, in CHANGE_SCHEMA.
        bare: which are ``after`` alone, without an envelope; None if none is.
        asks: a server may be asked for what is not known yet. Not ahead of delivery, where others
            would wait for its answer.
    """

    values: pa.BinaryArray
    topics: pa.DictionaryArray
    rows: pa.RecordBatch
    bare: pa.BooleanArray | None = None
    asks: bool = True


@dataclass(frozen=True, slots=True)
class Encoded:
    """What became of them.

    Attributes:
        values: binary, one per message; null where one is refused.
        rejections: why; ``event_row`` counts in the batch of messages.
    """

    values: pa.BinaryArray
    rejections: Sequence[Rejection] = ()


class Encoder(Protocol):
    """The worker of one sink. ``encode`` is called by one thread at a time."""

    def encode(self, bodies: Bodies) -> Encoded:
        """Return the bytes of each message.

        Raises:
            UnaskedError: a server is to be asked, which these messages do not allow.
            RetryableError: something it needs is away; called again with the same messages.
            FatalError: encoding can never work.
        """

    def close(self) -> None:
        """Release what it holds. Safe to call twice."""


class Encoding(PluginSettings):
    """A description: picklable, holds no connection."""

    media_type: ClassVar[str | None] = None
    """What the bytes are called in ``Content-Type``; None for JSON, which the envelope names."""
    is_text: ClassVar[bool] = True
    """The bytes are text without line breaks, as files of lines need it."""

    def reach(self, where: str) -> bool:
        """Ask the server that it needs, once and for a few seconds; return whether it needs one.

        Args:
            where: names the sink in errors.

        Raises:
            RetryableError: the server does not answer, or another one does.
            AccessError: it does not let us in.
            SpecError: the client cannot be made.
        """
        del where
        return False

    @abstractmethod
    def open(self, request: EncoderRequest) -> Encoder:
        """Return the worker.

        Raises:
            SpecError: it cannot work here.
        """
