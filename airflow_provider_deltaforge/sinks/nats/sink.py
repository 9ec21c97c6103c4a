"""Settings of a NATS sink."""

import re
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import Field, PositiveInt, PrivateAttr, SecretStr, field_validator, model_validator

from airflow_provider_deltaforge.sinks.contract import RowMarks, Sink, SinkWriter
from airflow_provider_deltaforge.spec.choice import refusal

_FOLDER = "airflow_provider_deltaforge.sinks.nats"
_SCHEMES = ("nats", "tls")
_STREAM = re.compile(r"[^\s.*>/\\]+")
_VARIABLE = "${"


class NatsSink(Sink):
    """One message per event: to a JetStream stream, or to core NATS where none takes the subject.

    With a stream each message is stored and acknowledged, and carries ``Nats-Msg-Id``, by which
    the server drops what it stored within the stream's duplicate window.
    """

    destination_field: ClassVar[str] = "subject"
    key_field: ClassVar[str] = "key"
    takes_chunks: ClassVar[bool] = True

    id: str = "nats"
    """Names the sink in checkpoints, metrics and logs; unique in the pipeline."""
    url: SecretStr
    """Servers, separated by commas, for example ``nats://one:4222,tls://two:4222``."""
    subject: str = Field(min_length=1)
    """Subject, or a template such as ``cdc.${source.db}.${source.table}``."""
    key: str | None = None
    """Template of the header ``df-key``; the row's primary key as JSON if absent."""
    stream: str | None = None
    """The JetStream stream that must take the subject; found by the subject if absent."""
    exactly_once: bool = False
    """Store our position with each message, in a stream that nobody else writes to."""
    send_timeout_secs: PositiveInt = 5
    """How long one acknowledgement may take, in seconds."""
    batch_timeout_secs: PositiveInt = 30
    """How long one batch may take, in seconds."""
    connect_timeout_secs: PositiveInt = 10
    """How long connecting may take, in seconds."""
    credentials_file: str | None = None
    """Path of a NATS credentials file (JWT and seed)."""
    username: str | None = None
    """User, together with ``password``."""
    password: SecretStr | None = None
    """Password of ``username``."""
    token: SecretStr | None = None
    """Token, instead of user and password."""
    nkey_seed: SecretStr | None = None
    """Seed of an NKey user; begins with ``SU``."""
    ca_file: str | None = None
    """Certificates to trust, in PEM; those of the system if absent."""
    cert_file: str | None = None
    """Our certificate, in PEM, for a server that asks for one."""
    key_file: str | None = None
    """The private key of ``cert_file``, if it is not in the same file."""

    # A copy without exactly_once writes the rows of a snapshot: they must not hide the position.
    _keeps_position: bool = PrivateAttr(default=False)
    _redelivery: str = PrivateAttr(default="")

    def model_post_init(self, context: Any) -> None:
        """Remember what the document says; copies do not come through here."""
        super().model_post_init(context)
        self._keeps_position = self.exactly_once

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: SecretStr) -> SecretStr:
        for address in split_addresses(value):
            scheme, found, rest = address.partition("://")
            if _VARIABLE in address:
                continue
            if found and scheme not in _SCHEMES:
                raise ValueError(f"a server begins with nats:// or tls://, not {scheme}://")
            if not (rest if found else scheme):
                raise ValueError("a server has no name")
            if not _is_address(address):
                raise ValueError(
                    "write each server as nats://host:4222; in a login '/', '?', '#', '@' and ',' "
                    "are %2F, %3F, %23, %40 and %2C"
                )
        return value

    @field_validator("stream")
    @classmethod
    def _check_stream(cls, value: str | None) -> str | None:
        if value is not None and _VARIABLE not in value and not _STREAM.fullmatch(value):
            raise ValueError("the name of a stream holds no blank, '.', '*', '>', '/' or '\\'")
        return value

    @model_validator(mode="after")
    def _check_together(self) -> "NatsSink":
        if (self.username is None) != (self.password is None):
            raise ValueError("'username' and 'password' go together")
        logins = ("username", "token", "nkey_seed", "credentials_file")
        named = [name for name in logins if getattr(self, name) is not None]
        if len(named) > 1:
            raise refusal((named[1],), f"goes not together with {named[0]}; keep one")
        if named and all("@" in address for address in self.servers):
            raise refusal((named[0],), "is not used where 'url' holds a login; keep one of both")
        if self.key_file is not None and self.cert_file is None:
            raise refusal(("key_file",), "goes together with cert_file")
        if self.exactly_once and self.stream is None:
            raise refusal(("exactly_once",), "needs 'stream', with no other writer than this sink")
        return self

    @property
    def servers(self) -> list[str]:
        """The addresses of ``url``, one by one."""
        return split_addresses(self.url)

    @property
    def encrypted(self) -> bool:
        """Whether a server without TLS is refused."""
        named = (self.ca_file, self.cert_file)
        return any(named) or any(each.startswith("tls://") for each in self.servers)

    @property
    def keeps_order_of(self) -> Literal["all", "keys", "rows"]:
        """Those of a key: others are under way together, and the stream may refuse one of them."""
        return "all" if self.exactly_once else "keys"

    @property
    def holds_position(self) -> bool:
        """Whether the document asks for exactly once."""
        return self.exactly_once

    def redelivering(self, mark: str) -> "NatsSink":
        """Return the description with another ``Nats-Msg-Id`` for each event."""
        copy = self.model_copy()
        copy._redelivery = mark  # noqa: SLF001 - of our own copy
        return copy

    @property
    def id_suffix(self) -> str:
        """What follows an event's id in ``Nats-Msg-Id``."""
        return f"{self.id}:{self._redelivery}" if self._redelivery else self.id

    def without_position(self) -> "NatsSink":
        """Return the description for what has no position."""
        return self.model_copy(update={"exactly_once": False})

    def open_row_marks(self, pipeline: str) -> RowMarks:
        """Connect for marks of rows."""
        marks: RowMarks = self._connected(f"{_FOLDER}.row_marks:NatsRowMarks", pipeline, "nats")
        return marks

    def dataset(self) -> tuple[str, str]:
        """Return how lineage calls what it writes to."""
        first = self.servers[0]
        parts = urlsplit(first if "://" in first else f"nats://{first}")
        return f"nats://{parts.netloc.rpartition('@')[2]}", self.subject

    def open(self, pipeline: str) -> SinkWriter:
        """Return a writer, which connects when it first writes.

        Raises:
            SpecError: the extra is missing.
        """
        place = "once:NatsOnceWriter" if self._keeps_position else "writer:NatsWriter"
        writer: SinkWriter = self._connected(f"{_FOLDER}.{place}", pipeline, "nats")
        return writer


def _is_address(address: str) -> bool:
    """Return whether no part of a login is taken for the server's name, which errors show."""
    try:
        parts = urlsplit(address if "://" in address else f"nats://{address}")
        return (
            bool(parts.hostname)
            and parts.port != 0
            and parts.path + parts.query in ("", "/")
            and not parts.fragment
        )
    except ValueError:
        return False


def split_addresses(url: SecretStr) -> list[str]:
    """Return the addresses that are separated by commas."""
    return [each.strip() for each in url.get_secret_value().split(",")]
