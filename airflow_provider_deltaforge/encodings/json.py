"""JSON as it comes from the envelope."""

import pyarrow as pa

from airflow_provider_deltaforge.encodings.contract import Encoding


class JsonEncoding(Encoding):
    """UTF-8 JSON text; what the envelope wrote, unchanged."""

    def encode(self, values: pa.BinaryArray) -> pa.BinaryArray:
        """Return the values themselves: nothing is copied."""
        return values
