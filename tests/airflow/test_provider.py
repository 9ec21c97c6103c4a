import ast
import importlib
import json
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path

import pytest

from airflow_provider_deltaforge.provider_info import get_provider_info

INFO = get_provider_info()
PACKAGE = Path(importlib.import_module("airflow_provider_deltaforge").__file__).parent


def test_the_entry_point_leads_to_the_info():
    points = entry_points(group="apache_airflow_provider")
    ours = [point for point in points if point.value.startswith("airflow_provider_deltaforge")]

    assert len(ours) == 1
    assert ours[0].load()() == INFO


def test_the_info_obeys_airflows_schema():
    import jsonschema

    schema = json.loads((files("airflow") / "provider_info.schema.json").read_text())
    jsonschema.validate(INFO, schema)


@pytest.mark.parametrize("room", ["hooks", "operators", "sensors", "triggers"])
def test_every_module_of_a_room_that_users_import_from_is_named(room):
    named = {name for entry in INFO[room] for name in entry["python-modules"]}
    present = {
        f"airflow_provider_deltaforge.{room}.{path.stem}"
        for path in (PACKAGE / room).glob("*.py")
        if offers_a_class(path)
    }

    assert named == present
    for name in named:
        importlib.import_module(name)


def test_what_is_named_by_its_class_is_there():
    named = [*INFO["notifications"], *(each["class-name"] for each in INFO["task-decorators"])]
    named += [each[key] for each in INFO["asset-uris"] for key in ("handler", "factory")]

    for name in named:
        module, _, found = name.rpartition(".")
        assert callable(getattr(importlib.import_module(module), found))


def test_every_link_is_named():
    present = {
        f"airflow_provider_deltaforge.links.{path.stem}.{node.name}"
        for path in (PACKAGE / "links").glob("*.py")
        for node in classes_of(path)
    }

    assert set(INFO["extra-links"]) == present
    for name in present:
        module, _, link = name.rpartition(".")
        assert getattr(importlib.import_module(module), link)().name


def test_every_option_is_read_somewhere():
    sources = "".join(
        path.read_text() for path in PACKAGE.rglob("*.py") if path.name != "provider_info.py"
    )
    options = [name for section in INFO["config"].values() for name in section["options"]]

    assert options
    assert [name for name in options if f'"{name}"' not in sources] == []


def test_operators_are_short():
    lengths = {
        node.name: (node.end_lineno or 0) - node.lineno + 1 - lines_of_docstring(node)
        for path in (PACKAGE / "operators").glob("*.py")
        for node in classes_of(path)
        if node.name.endswith("Operator")  # Bases, too.
    }

    assert lengths
    assert {name: count for name, count in lengths.items() if count > 100} == {}


def lines_of_docstring(node):
    """A DAG's author reads it; it may be as long as the arguments need."""
    return len((ast.get_docstring(node) or "").splitlines())


def classes_of(path):
    return [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]


def offers_a_class(path):
    """A DAG or the triggerer names it; bases and shared modules are not for users."""
    names = {node.name for node in classes_of(path)} - {"PollingTrigger", "SerializableTrigger"}
    return any(name.startswith("DeltaForge") or name.endswith("Trigger") for name in names)


def test_the_hook_is_the_one_its_connection_type_names():
    entry = INFO["connection-types"][0]
    module, _, name = entry["hook-class-name"].rpartition(".")
    hook = getattr(importlib.import_module(module), name)

    assert hook.conn_type == entry["connection-type"]
    assert hook.hook_name == entry["hook-name"]
    assert hook.conn_name_attr
    assert hook.default_conn_name


def test_airflow_loads_the_connection_form():
    from airflow.providers_manager import ProvidersManager

    manager = ProvidersManager()
    hook = manager.hooks["deltaforge"]

    assert hook is not None
    assert hook.hook_name == "DeltaForge state store"
