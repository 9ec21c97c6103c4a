"""A sink that several writers write to, wherever they run."""

import os
import random
import time
from pathlib import Path
from typing import ClassVar

from airflow_provider_deltaforge.sinks.contract import Sink


class Appending(Sink):
    """Every writer appends to one file, which then shows in what order messages arrived."""

    destination_field: ClassVar[str] = "path"
    takes_several_writers: ClassVar[bool] = True

    id: str = "appending"
    path: str

    def open(self, pipeline):
        return _Appender(Path(self.path))


class _Appender:
    def __init__(self, path):
        self._file = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY)

    def write(self, messages):
        for value in messages.values.to_pylist():
            os.write(self._file, value + b"\n")
            time.sleep(random.random() / 2000)
        os.fsync(self._file)
        return []

    def close(self):
        os.close(self._file)


PLACE = {"appending": f"{__name__}:Appending"}
"""For ``SINKS.shipped``, where a document may name it; a test takes it out again."""
