"""A processor that refuses the same events wherever it runs."""

from pathlib import Path

import orjson

from airflow_provider_deltaforge.processors.contract import Processor
from tests.engine.planted import refusing


class Picky(Processor):
    """Refuses every event of a row with an even key."""

    id: str = "picky"
    until: str = ""
    """A file with which it lets everything pass."""

    def open(self):
        return self

    def process(self, rows):
        over = bool(self.until) and Path(self.until).exists()
        return refusing(lambda text: not over and orjson.loads(text)["id"] % 2 == 0)(rows)

    def close(self):
        pass


PLACE = {"picky": f"{__name__}:Picky"}
"""For ``PROCESSORS.shipped``, where a document may name it; a test takes it out again."""
