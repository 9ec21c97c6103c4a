"""Settings of Avro."""

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import AliasChoices, Field, SecretStr, field_validator, model_validator

from airflow_provider_deltaforge.encodings.contract import Encoder, EncoderRequest, Encoding
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.spec.choice import refusal

if TYPE_CHECKING:
    from airflow_provider_deltaforge.encodings.avro.subjects import Subjects


class AvroEncoding(Encoding):
    """Avro, each table's schema registered with a schema registry."""

    media_type: ClassVar[str | None] = "application/avro"
    is_text: ClassVar[bool] = False

    schema_registry_url: str = Field(
        validation_alias=AliasChoices("schema_registry_url", "schema_registry")
    )
    """Where the schema registry listens, for example ``http://registry:8081``; several addresses
    are separated by commas. ``schema_registry`` is the same key."""
    subject_strategy: Literal["topic_name", "record_name", "topic_record_name"] = "topic_name"
    """How the subject of a schema is named: ``TOPIC-value``, the record's full name, or both."""
    username: str | None = None
    """User of the schema registry."""
    password: SecretStr | None = None
    """Password of the schema registry."""
    ca_file: str | None = None
    """Certificates to trust, in PEM; those of the system if absent."""
    cert_file: str | None = None
    """Our certificate, in PEM, for a registry that asks for one."""
    key_file: str | None = None
    """The private key of ``cert_file``, if it is not in the same file."""
    key_password: SecretStr | None = None
    """The password of ``key_file``."""
    unsigned_bigint_mode: Literal["string", "long"] = "string"
    """Avro type of an unsigned 64-bit column."""
    enum_mode: Literal["string", "enum"] = "string"
    """Avro type of an ENUM column."""
    naive_timestamp_mode: Literal["string", "timestamp"] = "string"
    """Avro type of a timestamp without a time zone; ``timestamp`` takes it for UTC."""

    @field_validator("schema_registry_url")
    @classmethod
    def _check_url(cls, value: str) -> str:
        for url in value.split(","):
            if not url.strip().startswith(("http://", "https://", "${")):
                raise ValueError("write an address that begins with http:// or https://")
            if "@" in url:
                raise ValueError("an address holds no password; use username and password")
        return value

    @model_validator(mode="after")
    def _check_password(self) -> "AvroEncoding":
        if self.password is not None and self.username is None:
            raise refusal(("password",), "a password needs a username")
        for name in ("key_file", "key_password"):
            if getattr(self, name) is not None and self.cert_file is None:
                raise refusal((name,), "goes together with cert_file")
        named = [name for name in ("ca_file", "cert_file") if getattr(self, name) is not None]
        if named and self.schema_registry_url.strip().startswith("http://"):
            raise refusal((named[0],), "is for TLS: write schema_registry_url as https://")
        return self

    def open(self, request: EncoderRequest) -> Encoder:
        """Return the worker; nothing is asked of the registry before the first message.

        Raises:
            SpecError: the extra ``avro`` is not installed, or the envelope has no known shape.
        """
        from airflow_provider_deltaforge.encodings.avro.column_types import Modes
        from airflow_provider_deltaforge.encodings.avro.encoder import AvroEncoder

        where = f"sink {request.sink}"
        if request.shape is None:
            raise SpecError(
                f"{where}: its envelope does not say what its messages look like, so they cannot "
                "be Avro records; choose another envelope, or the json encoding"
            )
        subjects = self._subjects(where)
        subjects.counts = request.counts
        modes = Modes(self.unsigned_bigint_mode, self.enum_mode, self.naive_timestamp_mode)
        return AvroEncoder(request, request.shape, subjects, self.subject_strategy, modes)

    def reach(self, where: str) -> bool:
        """Ask the registry which kinds of schema it takes."""
        subjects = self._subjects(where)
        try:
            subjects.reach()
        finally:
            subjects.close()
        return True

    def _subjects(self, where: str) -> "Subjects":
        from airflow_provider_deltaforge.encodings.avro.subjects import Subjects

        return Subjects(self.schema_registry_url, self.username, self.password, where, self._tls())

    def _tls(self) -> dict[str, str]:
        """Return what the registry's client needs to know of files."""
        files = {"ca": self.ca_file, "certificate": self.cert_file, "key": self.key_file}
        conf = {f"ssl.{name}.location": path for name, path in files.items() if path is not None}
        if self.key_password is not None:
            conf["ssl.key.password"] = self.key_password.get_secret_value()
        return conf
