"""Messages on standard output, one JSON text per line."""

import os
from collections.abc import Sequence
from typing import ClassVar

from airflow_provider_deltaforge.errors import FatalError
from airflow_provider_deltaforge.events.message import Messages, Rejection
from airflow_provider_deltaforge.sinks.contract import Sink, SinkWriter
from airflow_provider_deltaforge.sinks.lines import json_lines

_STANDARD_OUTPUT = 1


class StdoutSink(Sink):
    """Prints each message's value; for looking, not for keeping."""

    destination_field: ClassVar[str] = "topic"
    writes_lines: ClassVar[bool] = True
    is_private: ClassVar[bool] = True

    id: str = "stdout"
    """Names the sink in checkpoints, metrics and logs; unique in the pipeline."""
    topic: str = "stdout"
    """Shown before each value when it is not the plain ``stdout``; may be a template."""

    def open(self, pipeline: str) -> SinkWriter:
        """Return a writer to this process's standard output."""
        return StdoutWriter(with_topic=self.topic != "stdout")


class StdoutWriter:
    """Writes whole lines past Python's buffers, so that nothing is held back."""

    def __init__(self, *, with_topic: bool) -> None:
        self._with_topic = with_topic

    def write(self, messages: Messages) -> Sequence[Rejection]:
        """Print in order; see ``SinkWriter``.

        Raises:
            FatalError: nobody reads standard output any more.
        """
        if not len(messages):
            return []
        text = memoryview(json_lines(messages, with_topic=self._with_topic))
        try:
            while text:
                text = text[os.write(_STANDARD_OUTPUT, text) :]
        except OSError as error:
            raise FatalError(
                f"stdout sink: standard output cannot be written ({error.strerror}); "
                "keep the reader alive, or use a file sink"
            ) from error
        return []

    def close(self) -> None:
        """Standard output stays open."""
