"""What every encoding promises."""

from abc import abstractmethod
from typing import ClassVar

import pyarrow as pa

from airflow_provider_deltaforge.spec.settings import PluginSettings


class Encoding(PluginSettings):
    """A description that is also the worker, unless ``unbuilt`` says otherwise."""

    media_type: ClassVar[str | None] = None
    """What the bytes are called in ``Content-Type``; None for JSON, which the envelope names."""

    @abstractmethod
    def encode(self, values: pa.BinaryArray) -> pa.BinaryArray:
        """Return the bytes of each message; a null stays null (a tombstone).

        Args:
            values: One JSON text per message, as the envelope wrote it.
        """
