"""A processor that refuses the same events wherever it runs."""

import orjson

from airflow_provider_deltaforge.processors.contract import Processor
from tests.engine.planted import refusing


class Picky(Processor):
    """Refuses every event of a row with an even key."""

    id: str = "picky"

    def open(self):
        return self

    def process(self, rows):
        return refusing(lambda text: orjson.loads(text)["id"] % 2 == 0)(rows)

    def close(self):
        pass


PLACE = {"picky": f"{__name__}:Picky"}
"""For ``PROCESSORS.shipped``, where a document may name it; a test takes it out again."""
