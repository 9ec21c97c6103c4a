"""What each floor may import, proved by taking the rest away."""

from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from airflow_provider_deltaforge import plugins
from tests.architecture.probe import PACKAGE, failed_imports, modules

_ROOF = (
    "assets",
    "decorators",
    "hooks",
    "links",
    "notifications",
    "operators",
    "plugins_airflow",
    "sensors",
    "triggers",
)
_DRIVERS = {
    "confluent_kafka",
    "httpcore",
    "nats",
    "duckdb",
    "fastavro",
    "fastjsonschema",
    "psycopg",
    "py_mini_racer",
    "pymysql",
    "pymysqlreplication",
    "redis",
    "turso",
    "zstandard",
}
_ROOMS = {
    "sources": plugins.SOURCES,
    "processors": plugins.PROCESSORS,
    "sinks": plugins.SINKS,
    "envelopes": plugins.ENVELOPES,
    "encodings": plugins.ENCODINGS,
    "storage": plugins.STORES,
}


def test_everything_below_the_roof_imports_without_airflow_and_drivers():
    below = [name for name in modules() if name.split(".")[1:2] and not _is_roof(name)]

    assert failed_imports(below, absent=_DRIVERS | {"airflow"}) == {}


def test_everything_below_the_engine_imports_without_pyspark():
    spark = {*modules(PACKAGE / "engine" / "spark")}
    others = [name for name in modules() if name not in spark and not _is_roof(name)]

    assert failed_imports(others, absent={"airflow", "pyspark"}) == {}


def test_documents_and_the_command_line_need_no_extra():
    """A document that names a plug-in is read, and refused with reasons, before any extra."""
    places = [place for room in _ROOMS.values() for place in room.shipped.values()]
    named = {place.partition(":")[0] for place in places}
    entry = {"airflow_provider_deltaforge.cli.app", "airflow_provider_deltaforge.spec.load"}

    assert failed_imports(sorted(named | entry), absent=beyond_a_bare_installation()) == {}


def test_a_bare_installation_lacks_the_extras():
    lacking = beyond_a_bare_installation()

    assert {"airflow", "confluent_kafka", "pymysqlreplication", "pyspark", "turso"} <= lacking
    assert lacking & {"numba", "numpy", "pyarrow", "pydantic", "typer", "yaml"} == set()


@pytest.mark.parametrize("absent", sorted(_DRIVERS | {"airflow", "pyspark"}))
def test_the_probe_bites(absent, tmp_path):
    (tmp_path / "careless.py").write_text(f"import {absent}\n")
    (tmp_path / "careful.py").write_text(f"def open():\n    import {absent}\n")

    failures = failed_imports(["careful", "careless"], absent={absent}, path=tmp_path)

    assert list(failures) == ["careless"]
    assert absent in failures["careless"]


@pytest.mark.parametrize("room", _ROOMS.values(), ids=_ROOMS)
def test_every_listed_plug_in_is_a_class_in_its_file(room):
    for name, place in room.shipped.items():
        assert isinstance(room.load(name), type), place


@pytest.mark.parametrize(("folder", "room"), _ROOMS.items(), ids=_ROOMS)
def test_every_listed_plug_in_has_one_line_and_every_file_a_purpose(folder, room):
    listed = {place.partition(":")[0].split(".")[2] for place in room.shipped.values()}
    found = {
        path.stem
        for path in (PACKAGE / folder).iterdir()
        if (path.suffix == ".py" or (path / "__init__.py").exists()) and path.stem != "__init__"
    }
    # A class that listed ones are made of (SqlStore) is no plug-in of its own.
    bases = {
        base.__module__.split(".")[2]
        for name in room.shipped
        for base in room.load(name).__mro__
        if base.__module__.startswith("airflow_provider_deltaforge.")
    }
    classes = {
        stem
        for stem in found - listed - bases
        if _defines_a_plug_in(PACKAGE / folder / f"{stem}.py", room.kind)
    }

    assert listed <= found
    assert classes == set()
    assert list(room.shipped) == sorted(room.shipped)


def test_the_extras_bring_what_the_probe_takes_away():
    """A renamed driver must not leave the probe guarding a name nobody imports."""
    distributions = packages_distributions()
    required = " ".join(requires("airflow-provider-deltaforge") or ()).lower()
    known = {
        name
        for name in _DRIVERS
        if any(one.lower().replace("_", "-") in required for one in distributions.get(name, ()))
    }

    # pymysql comes with mysql-replication.
    assert known >= _DRIVERS - {"pymysql"}


def beyond_a_bare_installation() -> set[str]:
    """Return the importable packages that our base dependencies do not bring."""
    base, following = set(), [Requirement("airflow-provider-deltaforge")]
    while following:
        wanted = following.pop()
        name = canonicalize_name(wanted.name)
        if (name, *wanted.extras) in base:
            continue
        base.add((name, *wanted.extras))
        for text in requires(name) or ():
            one = Requirement(text)
            extras = wanted.extras or {""}
            if one.marker is None or any(one.marker.evaluate({"extra": e}) for e in extras):
                following.append(one)
    held = {name for name, *_ in base}
    return {
        package
        for package, owners in packages_distributions().items()
        if not held & {canonicalize_name(owner) for owner in owners}
    }


def _is_roof(name: str) -> bool:
    return name.split(".")[1:2] and name.split(".")[1] in _ROOF


def _defines_a_plug_in(path: Path, kind: str) -> bool:
    """Tell whether a file outside the list defines a class named like a plug-in of its room."""
    suffix = {"storage backend": "Store"}.get(kind, kind.capitalize())
    if not path.exists() or path.stem == "contract":
        return False
    lines = path.read_text().splitlines()
    heads = [line.partition("(")[0].rstrip(":") for line in lines if line.startswith("class ")]
    return any(head.endswith(suffix) and not head.startswith("class _") for head in heads)
