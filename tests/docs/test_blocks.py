"""YAML, JSON, TOML and Python on the pages are what this release reads and imports."""

import ast
import importlib
import json
import re
import sys
from typing import Any

import pytest
import yaml

from airflow_provider_deltaforge.errors import DeltaForgeError
from airflow_provider_deltaforge.spec.load import load
from tests.docs.pages import Block, blocks

if sys.version_info >= (3, 11):
    import tomllib

_OURS = {"apiVersion", "metadata", "spec"}
_BASE: dict[str, Any] = {
    "apiVersion": "deltaforge/v1",
    "kind": "Pipeline",
    "metadata": {"name": "page", "tenant": "acme"},
    "spec": {
        "source": {"type": "scripted", "config": {"id": "page"}},
        "sinks": [{"type": "memory", "config": {"id": "page"}}],
    },
}
_OF_PLUGINS = {"docs/plugins.md"}
"""Their documents name plug-ins that the page itself makes: ``tests/testing/test_page.py``."""
_SETTINGS = {"client_conf": ("kafka", {"id": "page", "brokers": "b:9092", "topic": "t"})}
"""A part of a sink's config that a page shows alone, and whose."""


def whole(text: str) -> str | None:
    """Return a document made of a part that a page shows; None for YAML that is not ours."""
    part = yaml.safe_load(text)
    if not isinstance(part, dict):
        return None
    named = {key: part[key] for key in _SETTINGS if key in part}
    if named:
        kind, config = _SETTINGS[next(iter(named))]
        part = {"sinks": [{"type": kind, "config": {**config, **named}}]}
    if not _OURS & part.keys():
        if part.keys() & {"services", "groups", "scrape_configs", "rule_files"}:
            return None
        part = {"spec": part}
    merged = {**_BASE, **part, "spec": {**_BASE["spec"], **part.get("spec", {})}}
    # As text, not made anew: the document's own reader has its own words for `on` and `no`.
    return text if part.keys() >= {"apiVersion", "spec"} else yaml.safe_dump(merged)


def yaml_fault(text: str) -> str | None:
    """Return why a block is no document of this release."""
    document = whole(text)
    if document is None:
        return None
    try:
        load(document, expand=False).refuse_unbuilt()
    except DeltaForgeError as error:
        return str(error)
    return None


def python_faults(text: str) -> list[str]:
    """Return what does not compile, and what is imported and is not there."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        return [str(error)]
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [_import_fault(alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found += [_import_fault(node.module, [alias.name for alias in node.names])]
    return [fault for fault in found if fault]


def _import_fault(module: str, names: Any) -> str | None:
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        return str(error)
    missing = [name for name in names if not hasattr(found, name)]
    return f"{module} has no {', '.join(missing)}" if missing else None


def test_every_document_is_one_that_this_release_runs():
    shown = [block for block in blocks("yaml") if block.page not in _OF_PLUGINS]

    assert len(shown) > 25
    assert {str(block): why for block in shown if (why := yaml_fault(block.text))} == {}


def test_every_json_is_json():
    shown = blocks("json")

    assert shown
    for block in shown:
        json.loads(block.text)


@pytest.mark.airflow
def test_all_python_compiles_and_what_it_imports_is_there():
    shown = blocks("python")
    own = {"docs/plugins.md": "deltaforge_ledger"}
    faults = {
        str(block): [
            fault for fault in python_faults(block.text) if own.get(block.page, "-") not in fault
        ]
        for block in shown
    }

    assert len(shown) > 20
    assert {place: found for place, found in faults.items() if found} == {}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib came with Python 3.11")
def test_all_toml_parses():
    for block in blocks("toml"):
        tomllib.loads(block.text)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("processors: [{type: filtr}]", "filtr"),
        ("spec: {sinks: [{type: kafka, config: {id: a, broker: b, topic: c}}]}", "broker"),
        ("client_conf: 7", "client_conf"),
        ("batch: {max_evnts: 7}", "max_evnts"),
    ],
)
def test_a_planted_lie_in_a_document_is_found(text, fault):
    assert fault in (yaml_fault(text) or "")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("def f(:", "invalid syntax"),
        ("import airflow_provider_deltaforge.nothing", "nothing"),
        ("from airflow_provider_deltaforge.errors import NoSuchError", "NoSuchError"),
    ],
)
def test_a_planted_lie_in_python_is_found(text, fault):
    assert fault in str(python_faults(text))


def test_the_places_of_blocks_are_shown():
    assert str(Block("README.md", 7, "yaml", "")) == "README.md:7"
    assert re.fullmatch(r"[\w./]+:\d+", str(blocks("yaml")[0]))
