"""Descriptions of where the state is."""

import pickle
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict
from pydantic import ValidationError

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.storage.location import StoreLocation, _resolve
from airflow_provider_deltaforge.storage.memory import MemoryStore
from airflow_provider_deltaforge.storage.sqlite import SqliteStore


def test_a_relative_path_means_the_same_file_in_every_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    location = pickle.loads(pickle.dumps(StoreLocation.from_dsn("sqlite:///a/state.db")))
    monkeypatch.chdir("/")
    store = location.create()
    store.put("n", "k", b"1")
    assert isinstance(store, SqliteStore)
    assert (tmp_path / "a" / "state.db").exists()


def test_an_absolute_path_has_four_slashes(tmp_path):
    location = StoreLocation.from_dsn(f"sqlite:///{tmp_path}/state.db")
    assert location.path == f"{tmp_path}/state.db"
    assert location.to_dsn() == f"sqlite:///{tmp_path}/state.db"
    assert StoreLocation.from_dsn(location.to_dsn()) == location


def test_without_a_variable_the_state_lies_below_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert StoreLocation.from_environment({}).path == str(tmp_path / ".deltaforge" / "state.db")
    location = StoreLocation.from_environment({"DELTAFORGE_STORE": "memory://m"})
    assert location.backend == "memory"
    monkeypatch.setenv("DELTAFORGE_STORE", f"sqlite:///{tmp_path}/other.db")
    assert StoreLocation.from_environment().path == str(tmp_path / "other.db")


def test_a_home_directory_is_the_readers_own():
    assert StoreLocation(path="~/state.db").path == str(Path.home() / "state.db")


def test_memory_of_one_name_is_shared_within_the_process():
    one, other = (StoreLocation.from_dsn("memory://shared").create() for _ in range(2))
    one.put("n", "k", b"1")
    assert isinstance(other, MemoryStore)
    assert other.get("n", "k") == b"1"
    assert StoreLocation.from_dsn("memory://else").create().get("n", "k") is None


def test_variables_are_resolved_where_the_store_is_opened(tmp_path, monkeypatch):
    location = StoreLocation.from_dsn("sqlite:///${STATE_DIR}/${STATE_FILE:-state.db}")
    assert location.path == "${STATE_DIR}/${STATE_FILE:-state.db}"
    with pytest.raises(SpecError, match="'STATE_DIR'"):
        location.open()
    monkeypatch.setenv("STATE_DIR", str(tmp_path))
    location.create().close()
    assert (tmp_path / "state.db").exists()


def test_a_postgresql_store_opens_with_a_password_from_the_environment(postgres_dsn, monkeypatch):
    with_secret = postgres_dsn.replace("postgres@", "postgres:${STATE_PASSWORD}@")
    location = StoreLocation.from_dsn(with_secret)
    monkeypatch.setenv("STATE_PASSWORD", "p@ss/w%rd:?#")
    store = pickle.loads(pickle.dumps(location)).create()
    store.put("n", "k", b"1")
    assert store._parameters["password"] == "p@ss/w%rd:?#"
    assert "${STATE_PASSWORD}" in location.to_dsn()
    store.close()


@pytest.mark.parametrize(
    ("dsn", "expected"),
    [
        ("postgresql://${U}:${P}@h/${D}", "postgresql://u:a%40b%2Fc@h/d/e"),
        ("postgresql://u:x${P}y@${H}/d", "postgresql://u:xa%40b%2Fcy@h1,h2:5433/d"),
        ("postgresql://u:${NO:-a/b}@h/d", "postgresql://u:a%2Fb@h/d"),
        ("postgresql://u:${EMPTY:-x}@h/d", "postgresql://u:x@h/d"),
        ("postgresql://${H}/d?user=${U}", "postgresql://h1,h2:5433/d?user=u"),
        ("postgresql://h/$D", "postgresql://h/$D"),
        ("${STORE}", "postgresql://u:a%40b%2Fc@h/d"),
    ],
)
def test_a_secret_never_becomes_part_of_the_host(dsn, expected):
    environment = {"U": "u", "P": "a@b/c", "D": "d/e", "H": "h1,h2:5433", "EMPTY": ""}
    environment["STORE"] = "postgresql://u:${P}@h/d"
    assert _resolve(dsn, environment) == expected


def test_the_password_shows_nowhere():
    location = StoreLocation.from_dsn("postgresql://u:open-sesame@h/d")
    assert "sesame" not in f"{location!r} {location} {location.model_dump_json()}"


@pytest.mark.parametrize(
    ("dsn", "complaint"),
    [
        ("state.db", "begin with its scheme"),
        ("${STORE}", "needs the variable .STORE."),
        ("${SCHEME}://h/d", "begin with its scheme"),
        ("sqlite://state.db", "sqlite:///path"),
        ("sqlite:///", "sqlite:///path"),
        ("postgress://h/d", "no state store is called 'postgress'"),
        ("postgresql+psycopg://h/d", "no state store is called"),
    ],
)
def test_a_dsn_nobody_answers_for_is_refused(dsn, complaint):
    with pytest.raises(SpecError, match=complaint):
        StoreLocation.from_dsn(dsn)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"backend": "sqlite"}, "storage.path"),
        ({"backend": "sqlite", "path": "s.db", "dsn": "sqlite:///t.db"}, "storage.dsn"),
        ({"backend": "postgres"}, "storage.dsn"),
        ({"backend": "postgres", "dsn": "postgresql://h/d", "path": "s.db"}, "storage.path"),
    ],
)
def test_a_setting_that_would_mean_nothing_is_refused(settings, key):
    with pytest.raises(ValidationError, match=key):
        StoreLocation(**settings)


@pytest.mark.parametrize(
    "master", ["local", "local[2]", "local[*]", "local[4,2]", "local-cluster[2,1,512]"]
)
def test_a_file_is_reachable_from_executors_of_this_host(master):
    StoreLocation(path="s.db").require_reachable(master)


@pytest.mark.parametrize("master", ["spark://h:7077", "yarn", "k8s://https://h", "spark://local"])
def test_a_file_is_refused_where_executors_may_run_on_other_hosts(master):
    with pytest.raises(SpecError, match="may run on others: use postgresql"):
        StoreLocation(path="s.db").require_reachable(master)
    StoreLocation.from_dsn("postgresql://h/d").require_reachable(master)


def test_memory_is_refused_under_any_spark_master():
    with pytest.raises(SpecError, match="one process"):
        StoreLocation.from_dsn("memory://").require_reachable("local[*]")


def test_a_connection_string_of_postgres_is_its_dsn(monkeypatch):
    """As the documents write it; what a variable holds stays one value."""
    text = "host=localhost dbname=deltaforge_storage user=df password=${STORE_PASSWORD}"
    location = StoreLocation.from_dsn(text)
    assert (location.backend, StoreLocation.from_dsn(location.to_dsn())) == ("postgres", location)
    resolved = _resolve(text, {"STORE_PASSWORD": "a b' host=evil \\"})
    assert conninfo_to_dict(resolved)["password"] == "a b' host=evil \\"
    assert conninfo_to_dict(resolved)["host"] == "localhost"
    assert "hunter2" not in StoreLocation.from_dsn("host=h password=hunter2").shown()


def test_a_dsn_may_be_one_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("STATE", f"sqlite:///{tmp_path}/state.db")
    assert StoreLocation.from_dsn("${STATE}").path == f"{tmp_path}/state.db"
    monkeypatch.setenv("STATE", "postgresql://df:hunter2@127.0.0.1:1/x")
    location = StoreLocation.from_dsn("${STATE}")
    assert (location.backend, location.to_dsn()) == ("postgres", "${STATE}")
    assert StoreLocation.from_dsn(location.to_dsn()) == location
    monkeypatch.setenv("OTHER", "${OTHER}")
    with pytest.raises(SpecError, match="is another variable"):
        StoreLocation.from_dsn("${OTHER}")
    with pytest.raises(SpecError, match="needs the variable 'MISSING'"):
        StoreLocation.from_dsn("${MISSING}")
