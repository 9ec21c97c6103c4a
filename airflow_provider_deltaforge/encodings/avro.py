"""Avro with a schema registry: described so that documents can be checked, not built yet."""

from typing import Literal

import pyarrow as pa
from pydantic import SecretStr

from airflow_provider_deltaforge.encodings.contract import Encoding
from airflow_provider_deltaforge.errors import SpecError

_UNBUILT = "encoding type 'avro'"


class AvroEncoding(Encoding):
    """Avro, each schema registered with a schema registry."""

    schema_registry_url: str
    """Where the schema registry listens, for example ``http://registry:8081``."""
    subject_strategy: Literal["topic_name", "record_name", "topic_record_name"] = "topic_name"
    """How the subject of a schema is named."""
    username: str | None = None
    """User of the schema registry."""
    password: SecretStr | None = None
    """Password of the schema registry."""
    unsigned_bigint_mode: Literal["string", "long"] = "string"
    """Avro type of an unsigned 64-bit column."""
    enum_mode: Literal["string", "enum"] = "string"
    """Avro type of an ENUM column."""
    naive_timestamp_mode: Literal["string", "timestamp"] = "string"
    """Avro type of a timestamp without a time zone."""

    def unbuilt(self) -> list[str]:
        """Name the whole encoding."""
        return [_UNBUILT]

    def encode(self, values: pa.BinaryArray) -> pa.BinaryArray:
        """Refuse.

        Raises:
            SpecError: always; this release writes JSON only.
        """
        raise SpecError(f"{_UNBUILT} is not part of this release; use 'json'")
