"""What a document says about Avro."""

from typing import ClassVar, Literal

from pydantic import SecretStr, field_validator, model_validator

from airflow_provider_deltaforge.encodings.contract import Encoder, Encoding, Wanted
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.spec.choice import refusal


class AvroEncoding(Encoding):
    """Avro, each table's schema registered with a schema registry."""

    media_type: ClassVar[str | None] = "application/avro"
    is_text: ClassVar[bool] = False

    schema_registry_url: str
    """Where the schema registry listens, for example ``http://registry:8081``; several addresses
    are separated by commas."""
    subject_strategy: Literal["topic_name", "record_name", "topic_record_name"] = "topic_name"
    """How the subject of a schema is named: ``TOPIC-value``, the record's full name, or both."""
    username: str | None = None
    """User of the schema registry."""
    password: SecretStr | None = None
    """Password of the schema registry."""
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
            if "@" in url.partition("//")[2].partition("/")[0]:
                raise ValueError("an address holds no password; use username and password")
        return value

    @model_validator(mode="after")
    def _check_password(self) -> "AvroEncoding":
        if self.password is not None and self.username is None:
            raise refusal(("password",), "a password needs a username")
        return self

    def open(self, wanted: Wanted) -> Encoder:
        """Return the worker; nothing is asked of the registry before the first message.

        Raises:
            SpecError: the extra ``avro`` is not installed, or the envelope has no known shape.
        """
        from airflow_provider_deltaforge.encodings.avro.column_types import Modes
        from airflow_provider_deltaforge.encodings.avro.encoder import AvroEncoder
        from airflow_provider_deltaforge.encodings.avro.subjects import Subjects

        where = f"sink {wanted.sink}"
        if wanted.shape is None:
            raise SpecError(
                f"{where}: its envelope does not say what its messages look like, so they cannot "
                "be Avro records; choose another envelope, or the json encoding"
            )
        subjects = Subjects(self.schema_registry_url, self.username, self.password, where)
        modes = Modes(self.unsigned_bigint_mode, self.enum_mode, self.naive_timestamp_mode)
        return AvroEncoder(wanted, wanted.shape, subjects, self.subject_strategy, modes)
