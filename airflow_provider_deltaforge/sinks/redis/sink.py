"""Settings of a Redis sink."""

import re
from typing import Any, ClassVar

from pydantic import (
    Field,
    NonNegativeInt,
    PositiveInt,
    PrivateAttr,
    SecretStr,
    field_validator,
    model_validator,
)

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.sinks.contract import RowMarks, Sink, SinkWriter
from airflow_provider_deltaforge.sinks.reader_contract import SinkReader
from airflow_provider_deltaforge.sinks.redis.address import Address, parse
from airflow_provider_deltaforge.sinks.redis.slots import tag_of
from airflow_provider_deltaforge.spec.choice import refusal

_FOLDER = "airflow_provider_deltaforge.sinks.redis"
_UNEXPANDED = re.compile(r"\$\{")


class RedisSink(Sink):
    """Entries of Redis Streams, one per message."""

    destination_field: ClassVar[str] = "stream"
    key_field: ClassVar[str] = "key"
    takes_chunks: ClassVar[bool] = True

    uri: SecretStr
    """``redis://host:6379/0``, ``rediss://`` with TLS, ``unix:///path``,
    ``redis+sentinel://host:26379,host/mymaster/0`` or ``redis+cluster://host:6379,host``."""
    username: str | None = None
    """ACL user, if not in the URI; goes with ``password``."""
    password: SecretStr | None = None
    """Password, if not in the URI."""
    database: NonNegativeInt | None = None
    """Number of the database, if not in the URI; 0 if in neither."""
    ca_file: str | None = None
    """Certificates to trust, in PEM; those of the system if absent. For ``rediss``."""
    cert_file: str | None = None
    """Our certificate, in PEM, for a server that asks for one."""
    key_file: str | None = None
    """The private key of ``cert_file``, if it is not in the same file."""
    key_password: SecretStr | None = None
    """The password of ``key_file``."""
    stream: str = Field(min_length=1)
    """Template of the stream's name, such as ``events:${source.table}``."""
    key: str | None = None
    """Template of the field ``df-key``; the row's primary key as JSON if absent."""
    max_len: PositiveInt | None = None
    """About how many entries each stream keeps (``MAXLEN ~``); all of them if absent."""
    exactly_once: bool = False
    """Write the position into Redis in the same atomic step as the entries."""
    client_name: str | None = Field(default=None, pattern=r"^[!-~]+$")
    """How ``CLIENT LIST`` shows us; ``deltaforge-PIPELINE-SINK`` if absent."""
    send_timeout_secs: PositiveInt = 5
    """How long one step may take, of at most 1,000 entries, in seconds."""
    batch_timeout_secs: PositiveInt = 30
    """How long one batch may take until the pipeline counts as blocked, in seconds."""
    connect_timeout_secs: PositiveInt = 10
    """How long connecting may take, in seconds."""

    # A copy without exactly_once writes the rows of a snapshot, with the marks of their chunks.
    _keeps_position: bool = PrivateAttr(default=False)

    def model_post_init(self, context: Any) -> None:
        """Remember what the document says; copies do not come through here."""
        super().model_post_init(context)
        self._keeps_position = self.exactly_once

    @field_validator("uri")
    @classmethod
    def _check_uri(cls, value: SecretStr) -> SecretStr:
        if not _UNEXPANDED.search(value.get_secret_value()):
            parse(value.get_secret_value())
        return value

    @model_validator(mode="after")
    def _check_together(self) -> "RedisSink":
        if self.username is not None and self.password is None:
            raise refusal(("password",), "'username' needs it")
        if self.key_file is not None and self.cert_file is None:
            raise refusal(("cert_file",), "'key_file' needs it")
        if self.key_password is not None and self.cert_file is None:
            raise refusal(("cert_file",), "'key_password' needs it")
        if not _UNEXPANDED.search(self.uri.get_secret_value()):
            self._check_address(parse(self.uri.get_secret_value()))
        return self

    def _check_address(self, address: Address) -> None:
        user, password = address.login
        if user is not None and password is None:
            raise refusal(("uri",), "a user needs a password: …://user:password@host")
        if self.password is not None and password is not None:
            raise refusal(("password",), "'uri' names one as well; keep one of both")
        if self.database is not None and address.database is not None:
            raise refusal(("database",), "'uri' names one as well; keep one of both")
        if self.database and address.kind == "cluster":
            raise refusal(("database",), "a cluster has database 0 only")
        if self.ca_file or self.cert_file:
            key = "ca_file" if self.ca_file else "cert_file"
            if not address.tls:
                raise refusal((key,), "is for TLS: write the uri as rediss://")
        if self.exactly_once and address.kind == "cluster" and tag_of(self.stream) is None:
            raise refusal(
                ("stream",),
                "exactly_once on a cluster needs one hash slot for every stream: begin the name "
                "with a hash tag, as in {orders}:${source.table}",
            )

    def address(self) -> Address:
        """Return where Redis is.

        Raises:
            SpecError: the URI cannot be read, for example because a variable is missing.
        """
        try:
            address = parse(self.uri.get_secret_value())
            self._check_address(address)
        except ValueError as error:
            reason = error.errors()[0]["msg"] if hasattr(error, "errors") else str(error)
            raise SpecError(f"sink {self.id}: uri: {reason}") from None
        return address

    @property
    def holds_position(self) -> bool:
        """Whether the document asks for exactly once."""
        return self.exactly_once

    def without_position(self) -> "RedisSink":
        """Return the description for what has no position."""
        return self.model_copy(update={"exactly_once": False})

    def open_row_marks(self, pipeline: str) -> RowMarks:
        """Connect for marks of rows."""
        marks: RowMarks = self._connected(f"{_FOLDER}.row_marks:RedisRowMarks", pipeline, "redis")
        return marks

    def open_reader(self, pipeline: str) -> SinkReader:
        """Connect for reading streams back."""
        reader: SinkReader = self._connected(f"{_FOLDER}.reader:RedisReader", pipeline, "redis")
        return reader

    def dataset(self) -> tuple[str, str]:
        """Return how lineage calls what it writes to."""
        return f"redis://{self.address().shown}", self.stream

    def open(self, pipeline: str) -> SinkWriter:
        """Connect; a server that is away is left to the first write.

        Raises:
            SpecError: a setting cannot be obeyed, or the extra is missing.
            AccessError: the server refuses the credentials, the certificate or the commands.
        """
        place = "writer:RedisWriter"
        if self._keeps_position:
            once = self.exactly_once
            place = "once:RedisOnceWriter" if once else "chunk_rows:RedisChunkWriter"
        writer: SinkWriter = self._connected(f"{_FOLDER}.{place}", pipeline, "redis")
        return writer
