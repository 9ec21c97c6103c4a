"""Settings of an HTTP sink."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import Field, PositiveInt, SecretStr, field_validator, model_validator

from airflow_provider_deltaforge.sinks.contract import Sink, SinkWriter
from airflow_provider_deltaforge.sinks.http.address import (
    check_template,
    fixed_part,
    named_origin,
    origin_of,
    proxy_of,
)
from airflow_provider_deltaforge.sinks.http.headers import FRAMING, NAME, OURS, VALUE
from airflow_provider_deltaforge.sinks.http.signing import signing_key
from airflow_provider_deltaforge.spec.choice import refusal

_WRITER = "airflow_provider_deltaforge.sinks.http.writer:HttpWriter"
_VARIABLE = re.compile(r"\$\{")


class HttpSink(Sink):
    """A request per event, or per array of events, to a webhook; in order per key."""

    destination_field: ClassVar[str] = "url"
    key_field: ClassVar[str] = "key"
    takes_several_writers: ClassVar[bool] = True
    quotes_fields: ClassVar[bool] = True

    id: str = "http"
    """Names the sink in checkpoints, metrics and logs; unique in the pipeline."""
    url: str = Field(min_length=1)
    """Where requests go; path and query may name fields: ``https://host/${source.table}``."""
    method: Literal["POST", "PUT", "PATCH"] = "POST"
    """The method of the requests."""
    headers: Mapping[str, SecretStr] = Field(default_factory=dict)
    """Sent with every request, such as ``Authorization: Bearer ${TOKEN}``; never shown."""
    key: str | None = None
    """Template of the header ``df-key``; the row's primary key as JSON if absent."""
    batch_mode: bool = False
    """Send a batch as a JSON array in one request per URL."""
    parallelism: int = Field(default=1, ge=1, le=64)
    """Requests under way at the same time; those for one key still go one after the other."""
    send_timeout_secs: PositiveInt = 10
    """How long one request with one event may take, in seconds."""
    batch_timeout_secs: PositiveInt = 30
    """How long one request with an array may take, in seconds."""
    connect_timeout_secs: PositiveInt = 5
    """How long connecting may take, the TLS handshake included, in seconds."""
    allowed_origins: tuple[str, ...] = ()
    """Further hosts that a processor may route events to, as ``https://host``."""
    proxy: SecretStr | None = None
    """``http://user:password@host:port`` to go through; the environment's are not used."""
    signing_secret: SecretStr | None = None
    """Sign each request as Standard Webhooks asks for; base64, after ``whsec_`` or alone."""
    ca_file: str | None = None
    """Certificates to trust, in PEM; those of the system if absent."""
    cert_file: str | None = None
    """Our certificate, in PEM, for an endpoint that asks for one."""
    key_file: str | None = None
    """The private key of ``cert_file``, if it is not in the same file."""
    key_password: SecretStr | None = None
    """The password of ``key_file``."""

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str) -> str:
        check_template(value)
        return value

    @field_validator("method", mode="before")
    @classmethod
    def _upper(cls, value: Any) -> Any:
        return value.upper() if isinstance(value, str) else value

    @field_validator("headers", mode="before")
    @classmethod
    def _numbers_are_text(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {
            name: str(item) if type(item) in {int, float} else item for name, item in value.items()
        }

    @field_validator("headers")
    @classmethod
    def _check_headers(cls, value: Mapping[str, SecretStr]) -> Mapping[str, SecretStr]:
        for name, secret in value.items():
            if not NAME.fullmatch(name):
                raise ValueError(f"headers.{name!r} is not the name of a header")
            if name.lower() in FRAMING | OURS:
                raise ValueError(f"headers.{name} belongs to the sink; remove it")
            text = secret.get_secret_value()
            if not (_VARIABLE.search(text) or VALUE.fullmatch(text)):
                raise ValueError(f"headers.{name} holds a character that no header may hold")
        if len({name.lower() for name in value}) < len(value):
            raise ValueError("headers names one twice; case makes no difference")
        return value

    @field_validator("allowed_origins")
    @classmethod
    def _check_origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            if not _VARIABLE.search(text):
                named_origin(text)
        return value

    @field_validator("proxy")
    @classmethod
    def _check_proxy(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not _VARIABLE.search(value.get_secret_value()):
            proxy_of(value.get_secret_value())
        return value

    @field_validator("signing_secret")
    @classmethod
    def _check_secret(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not _VARIABLE.search(value.get_secret_value()):
            signing_key(value.get_secret_value())
        return value

    @model_validator(mode="after")
    def _check_together(self) -> "HttpSink":
        if self.batch_mode and self.encoding.media_type is not None:
            raise refusal(("batch_mode",), "only JSON can be sent as an array; remove one of both")
        if self.batch_mode and self.key is not None:
            raise refusal(("key",), "an array has no header 'df-key'; remove it, or batch_mode")
        for name, needed in (("key_file", "cert_file"), ("key_password", "cert_file")):
            if getattr(self, name) is not None and getattr(self, needed) is None:
                raise refusal((name,), f"goes together with {needed}")
        files = [name for name in ("ca_file", "cert_file") if getattr(self, name) is not None]
        addresses = (self.url, *self.allowed_origins)
        if files and all(each.lower().startswith("http://") for each in addresses):
            raise refusal((files[0],), "is for https://, which 'url' does not begin with")
        return self

    @property
    def keeps_order_of(self) -> Literal["all", "keys", "rows"]:
        """All, unless requests are under way together; arrays are made by URL, and have no keys."""
        if self.batch_mode:
            return "rows"
        return "keys" if self.parallelism > 1 else "all"

    def dataset(self) -> tuple[str, str]:
        """Return how lineage calls what it writes to: paths of webhooks are often secret."""
        return str(origin_of(urlsplit(fixed_part(self.url)))), self.id

    def open(self, pipeline: str) -> SinkWriter:
        """Return a writer; it connects with the first message.

        Raises:
            SpecError: a file of the TLS settings cannot be used, or the extra is missing.
        """
        writer: SinkWriter = self._connected(_WRITER, pipeline, "http")
        return writer
