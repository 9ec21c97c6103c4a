"""JSON as it comes from the envelope."""

from airflow_provider_deltaforge.encodings.contract import (
    Bodies,
    Encoded,
    Encoder,
    EncoderRequest,
    Encoding,
)


class JsonEncoding(Encoding):
    """UTF-8 JSON text; what the envelope wrote, unchanged."""

    def open(self, request: EncoderRequest) -> Encoder:
        """Return the worker."""
        return JsonEncoder()


class JsonEncoder:
    """Hands the values through."""

    def encode(self, bodies: Bodies) -> Encoded:
        """Return the values themselves: nothing is copied."""
        return Encoded(bodies.values)

    def close(self) -> None:
        """Nothing is held."""
