"""The suites catch plug-ins that break their contract, and only they need pytest."""

import re
import subprocess
import sys

import pytest

from tests.architecture.probe import CHECKOUT, failed_imports

BROKEN = """
import itertools
import os

import pytest

from airflow_provider_deltaforge.processors.contract import Processed, Processor
from airflow_provider_deltaforge.sources.scripted import ScriptedReader
from airflow_provider_deltaforge.testing import (
    MemorySink, MemoryStore, ProcessorContract, ScriptedSource, SinkContract, SourceContract,
    StoreContract, memory_log,
)

numbers = itertools.count()


class Reversing(MemorySink):
    def open(self, pipeline):
        return Backwards(super().open(pipeline))


class Backwards:
    def __init__(self, writer):
        self.writer = writer

    def write(self, messages):
        order = list(reversed(range(len(messages))))
        return self.writer.write(messages.take(order))

    def close(self):
        self.writer.close()


class TestReversing(SinkContract):
    @pytest.fixture
    def sink(self):
        return Reversing(log=f"log-{next(numbers)}")

    @pytest.fixture
    def place(self):
        return "t"

    @pytest.fixture
    def stored(self, sink):
        return lambda: [message.value for message in memory_log(sink.log).messages()]


class Dropping(Processor):
    id: str = "dropping"

    def open(self):
        return self

    def process(self, rows):
        return Processed(rows.slice(1))

    def close(self):
        pass


class TestDropping(ProcessorContract):
    @pytest.fixture
    def processor(self):
        return Dropping()


class Renaming(ScriptedSource):
    def event_id(self, tx, row):
        return os.urandom(16)


class Ahead(ScriptedSource):
    def open(self, position, stopping=lambda: False, history=None):
        return Skipping(self, position["tx"] + 1)


class Skipping(ScriptedReader):
    pass


class TestRenaming(SourceContract):
    @pytest.fixture
    def source(self):
        return Renaming(transactions=7)

    @pytest.fixture
    def start(self):
        return {"tx": 2}


class TestAhead(TestRenaming):
    @pytest.fixture
    def source(self):
        return Ahead(transactions=7)


class Unfenced(MemoryStore):
    def transact(self, writes, fence=None):
        super().transact(writes)


class TestUnfenced(StoreContract):
    @pytest.fixture
    def open_store(self):
        store = Unfenced()
        return lambda: store
"""

CAUGHT = {
    "TestReversing::test_batches_keep_their_order",
    "TestDropping::test_what_comes_out_is_what_the_engine_takes",
    "TestRenaming::test_what_is_read_again_is_the_same",
    "TestAhead::test_reading_goes_on_behind_any_transaction",
    "TestUnfenced::test_only_the_holder_of_a_fence_writes",
}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("broken")
    (folder / "test_broken.py").write_text(BROKEN)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rf", "-p", "no:cacheprovider", "test_broken.py"],
        check=False,
        cwd=folder,
        capture_output=True,
        text=True,
    )
    return done.stdout


def test_what_breaks_a_contract_is_caught(report):
    failed = set(re.findall(r"^FAILED test_broken\.py::(\w+::\w+)", report, re.M))

    assert CAUGHT - failed == set(), report
    assert " passed" in report


def test_a_failure_shows_the_values(report):
    assert "assert [b'{\"n\":9}'" in report


def test_without_pytest_the_extra_is_named():
    name = "airflow_provider_deltaforge.testing"

    failures = failed_imports([name, "airflow_provider_deltaforge.cli.app"], absent={"pytest"})

    assert list(failures) == [name]
    assert "pip install 'airflow-provider-deltaforge[testing]'" in failures[name]
    assert 'testing = ["pytest' in (CHECKOUT / "pyproject.toml").read_text()
