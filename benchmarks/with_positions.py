"""Writes with positions what a benchmark hands over without."""

from collections.abc import Sequence
from typing import Any

from airflow_provider_deltaforge.errors import FencedError
from airflow_provider_deltaforge.events.message import Messages, Rejection
from airflow_provider_deltaforge.sinks.contract import SinkWriter
from airflow_provider_deltaforge.sinks.position_contract import SinkPosition

_POSITION = SinkPosition({"file": "binlog.000042", "pos": 197, "gtid": "3E11FA47-71CA:1-4711"})


def with_positions(writer: Any) -> SinkWriter:
    """Return a writer that acts as a lane with exactly_once does, and has found its end."""
    writer.recover()
    return _Once(writer)


class _Once:
    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write(self, messages: Messages) -> Sequence[Rejection]:
        try:
            return self._write(messages)
        except FencedError:  # Between two rounds the server forgot all that it held.
            self._writer.recover()
            return self._write(messages)

    def close(self) -> None:
        self._writer.close()

    def _write(self, messages: Messages) -> Sequence[Rejection]:
        rejections: Sequence[Rejection] = self._writer.write_once(messages, _POSITION, _POSITION)
        return rejections
