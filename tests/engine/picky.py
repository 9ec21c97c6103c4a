"""Processors that refuse, or stretch, the same events wherever they run."""

import hashlib
from pathlib import Path

import orjson
import pyarrow as pa

from airflow_provider_deltaforge.processors.contract import Processed, Processor
from tests.engine.planted import refusing


class Picky(Processor):
    """Refuses every event of a row with an even key."""

    id: str = "picky"
    until: str = ""
    """A file with which it lets everything pass, or the rows up to the key in it."""

    def open(self):
        return self

    def process(self, rows):
        upto = self._upto()

        def is_refused(text):
            key = orjson.loads(text)["id"]
            return key % 2 == 0 and key > upto

        return refusing(is_refused)(rows)

    def _upto(self):
        if not self.until or not Path(self.until).exists():
            return 0
        return float(Path(self.until).read_text() or "inf")

    def close(self):
        pass


class Stretching(Processor):
    """Makes one event of some transactions so long that a sink may refuse it."""

    id: str = "stretching"
    transactions: tuple[int, ...]

    def open(self):
        return self

    def process(self, rows):
        after = [self._stretched(text) for text in rows["after"].to_pylist()]
        at = rows.schema.get_field_index("after")
        field = rows.schema.field(at)
        return Processed(rows.set_column(at, field, pa.array(after, field.type)))

    def _stretched(self, text):
        event = orjson.loads(text)
        if event["tx"] not in self.transactions or event["row"]:
            return text
        pad = hashlib.shake_256(text).hexdigest(LONG // 2)
        return orjson.dumps({**event, "pad": pad})

    def close(self):
        pass


LONG = 30_000

PLACE = {"picky": f"{__name__}:Picky", "stretching": f"{__name__}:Stretching"}
"""For ``PROCESSORS.shipped``, where a document may name it; a test takes it out again."""
