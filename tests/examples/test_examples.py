"""Each example document that processes or senses, with its page's inputs, between real servers.

What comes out is in the golden files: it is what the document does, not what the page says; where
they differ, ``docs/decisions/seeds.md`` has it.
"""

import json
from pathlib import Path

import pytest
import yaml

from tests.examples.example_run import INPUTS, SAME_INPUT, ExampleRun, Servers
from tests.spec.documents import EXAMPLES

GOLDEN = Path(__file__).parents[1] / "golden" / "examples"
STEMS = sorted({*SAME_INPUT, *(path.stem for path in INPUTS.glob("*.sql"))})


@pytest.fixture
def servers(mysql_server, postgres_server, kafka_server, redis_server, nats_server):
    return Servers(mysql_server, postgres_server, kafka_server, redis_server, nats_server)


def test_no_example_with_a_processor_or_sensing_is_missing():
    documents = {path.stem: yaml.safe_load(path.read_text()) for path in EXAMPLES.glob("seed_*")}

    asked = {
        stem
        for stem, document in documents.items()
        if document["spec"].get("processors") or "schema_sensing" in document["spec"]
    }

    assert sorted(asked) == STEMS


@pytest.mark.parametrize("stem", STEMS)
def test_an_example_does_what_its_golden_file_says(stem, servers, tmp_path, golden, monkeypatch):
    run = ExampleRun(stem, servers, tmp_path)
    for name, value in run.variables.items():
        monkeypatch.setenv(name, value)

    arrived = run.run()

    told = {"taken out": sorted({line.replace(str(tmp_path), "") for line in run.taken_out})}
    text = json.dumps({**told, **arrived}, indent=1, ensure_ascii=False) + "\n"
    golden(GOLDEN / f"{stem}.json", text.encode())
