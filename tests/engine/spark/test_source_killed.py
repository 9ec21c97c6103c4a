"""A Spark user's application, killed half-way: its Parquet holds every event exactly once."""

import json
import os
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from airflow_provider_deltaforge.sources.scripted import ScriptedSource
from tests.engine.scripted_run import kill
from tests.engine.spark import frame_application, parquet
from tests.servers.process import family
from tests.waiting import wait_for

pytestmark = pytest.mark.spark

TRANSACTIONS = 700
SOURCE = f"{{type: scripted, config: {{id: frame, transactions: {TRANSACTIONS}, rows: 3}}}}"


class Application:
    """One application, with a checkpoint and an output that survive it."""

    def __init__(self, directory: Path, options: dict[str, str]) -> None:
        self.checkpoint, self.output = directory / "checkpoint", directory / "output"
        self.log = directory / "application.log"
        self._options = options

    def start(self, trigger: str) -> subprocess.Popen[bytes]:
        script = frame_application.__file__
        line = [sys.executable, script, json.dumps(self._options), self.checkpoint, self.output]
        told = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [*line, trigger], env=told, stdout=log, stderr=log, start_new_session=True
            )


def test_a_killed_application_writes_every_event_once(tmp_path):
    options = {
        "source": SOURCE,
        "startingPosition": '{"tx": 0}',
        "maxEventsPerTrigger": "100",
    }
    application = Application(tmp_path, options)
    first = application.start("on")
    wait_for("some micro-batches", lambda: len(parquet.batches(application.output)) >= 4)
    for pid in family(first.pid):
        with suppress(ProcessLookupError):  # Some end with the process that was killed before.
            kill(pid)
    first.wait()
    before = len(parquet.rows(application.output))

    second = application.start("now")
    code = second.wait(180)

    assert code == 0, application.log.read_text()[-3000:]
    source = ScriptedSource(id="frame", transactions=TRANSACTIONS, rows=3)
    wanted = {
        (tx, row): {"id": key, "tx": tx, "row": row}
        for tx, row, key in source.events(1, TRANSACTIONS)
    }
    rows = parquet.rows(application.output)
    images = [json.loads(row["after"]) for row in rows]
    assert 0 < before < len(wanted)
    assert Counter((image["tx"], image["row"]) for image in images) == Counter(wanted.keys())
    assert all(wanted[image["tx"], image["row"]] == image for image in images)
    assert len({row["event_id"] for row in rows}) == len(wanted)
