"""Plug-ins of other distributions: found by their entry points, and refused by name."""

import pytest

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.plugins import PROCESSORS, SINKS, STORES
from airflow_provider_deltaforge.spec.json_schema import json_schema
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.storage.choice import store_in
from tests.spec.documents import document

CODE = """
from airflow_provider_deltaforge.sinks.contract import Sink
from airflow_provider_deltaforge.storage.memory import MemoryStore

NUMBER = 1

class Homeless(Sink):
    topic: str = "t"
    def open(self, pipeline):
        return None

class Plain:
    def open(self, pipeline):
        return None

class Half:
    def get(self, namespace, key):
        return None

class Whole(MemoryStore):
    def __init__(self, address, *, create, identity):
        super().__init__()
        self.opened = (address, create, identity)
"""


@pytest.fixture
def register(tmp_path, monkeypatch):
    """Install a distribution with ``CODE`` and these lines of entry points."""

    def write(text):
        (tmp_path / "strange_plugins.py").write_text(CODE)
        info = tmp_path / "strange_plugins-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: strange_plugins\nVersion: 1.0\n"
        )
        (info / "entry_points.txt").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)

    return write


@pytest.mark.parametrize(
    ("kind", "registry", "name", "reason"),
    [
        ("sinks", SINKS, "Homeless", "does not define destination_field"),
        ("sinks", SINKS, "Plain", "no subclass of airflow_provider_deltaforge.sinks.contract:Sink"),
        ("sinks", SINKS, "NUMBER", "no subclass of"),
        ("processors", PROCESSORS, "Homeless", "no subclass of .*processors.contract:Processor"),
        ("stores", STORES, "Half", "does not define ack, append, close"),
        ("sinks", SINKS, "Gone", "cannot be imported"),
    ],
)
def test_what_is_not_whole_is_refused_with_what_it_lacks(register, kind, registry, name, reason):
    register(f"[deltaforge.{kind}]\nodd = strange_plugins:{name}\n")

    with pytest.raises(SpecError, match=rf"'odd'.*{reason}"):
        registry.load("odd")


def test_a_module_that_is_not_there_is_a_sentence_in_the_json_schema_too(register):
    register("[deltaforge.sinks]\nodd = nowhere:Gone\n")

    with pytest.raises(SpecError, match="sink 'odd' cannot be imported"):
        json_schema()


def test_a_document_names_the_address_of_an_installed_store(register, monkeypatch):
    register("[deltaforge.stores]\nwhole = strange_plugins:Whole\n")
    monkeypatch.setenv("STATE_HOST", "h")
    text = document(spec="storage: {backend: whole, dsn: 'whole://${STATE_HOST}/1'}")

    location = store_in(text)

    assert load(text, {"STATE_HOST": "h"}).spec.storage.backend == "whole"
    assert location.open().opened == ("whole://h/1", False, None)
    assert location.create().opened == ("whole://h/1", True, None)


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_other_stores_have_no_address(backend):
    storage = f"storage: {{backend: {backend}, dsn: 'x://y'}}"

    with pytest.raises(SpecError, match=r"spec\.storage\.dsn: has no meaning"):
        load(document(spec=storage), {})
