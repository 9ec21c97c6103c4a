"""The document's own state store is obeyed, or refused when somebody named another."""

import pytest

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.storage.choice import check_store, store_of
from airflow_provider_deltaforge.storage.location import DEFAULT_DSN, StoreLocation
from tests.spec.documents import document

PG = "postgresql://df:${PW}@db:5432/state"


def _with(storage):
    return document(spec=f"storage: {storage}") if storage else document()


def test_a_document_without_a_store_takes_what_is_given_or_the_default():
    given = StoreLocation.from_dsn("sqlite:////data/state.db")
    assert store_of(_with(""), given) == given
    assert store_of(_with(""), None) == StoreLocation.from_dsn(DEFAULT_DSN)


def test_a_document_names_its_store(monkeypatch):
    found = store_of(_with("{backend: sqlite, path: /data/own.db}"), None)
    assert found.to_dsn() == "sqlite:////data/own.db"
    found = store_of(_with(f"{{backend: postgres, dsn: '{PG}'}}"), None)
    assert found.to_dsn() == PG


def test_the_same_store_may_be_named_in_other_words(monkeypatch):
    monkeypatch.setenv("PW", "p@ss/word")
    monkeypatch.setenv("HERE", "/data")
    monkeypatch.setenv("DELTAFORGE_STORE", PG)
    travelling = StoreLocation(backend="postgres", dsn="${DELTAFORGE_STORE}")
    store_of(_with(f"{{backend: postgres, dsn: '{PG}'}}"), travelling)
    given = StoreLocation.from_dsn("sqlite:////data/../data/own.db")
    assert store_of(_with("{backend: sqlite, path: '${HERE}/own.db'}"), given).file() is not None


@pytest.mark.parametrize(
    ("storage", "given", "named"),
    [
        ("{backend: sqlite, path: /data/own.db}", "sqlite:////data/x.db", "/data/own.db"),
        ("{backend: sqlite, path: /data/own.db}", "postgresql://u:secret@h/d", "u:\\*\\*\\*@h"),
        ("{backend: postgres, dsn: 'postgresql://u:secret@h/d'}", "sqlite:////x.db", "/x.db"),
    ],
)
def test_another_store_than_the_documents_is_refused_and_both_are_named(storage, given, named):
    with pytest.raises(SpecError, match=f"spec.storage.*{named}") as caught:
        store_of(_with(storage), StoreLocation.from_dsn(given))
    assert "secret" not in str(caught.value)


def test_a_store_without_its_place_is_refused():
    with pytest.raises(SpecError, match=r"spec\.storage: give 'path'"):
        store_of(_with("{backend: sqlite}"), None)


def test_a_driver_with_a_working_directory_of_its_own_takes_a_relative_path_as_resolved(
    tmp_path, monkeypatch
):
    text = _with("{backend: sqlite, path: data/own.db}")
    monkeypatch.chdir(tmp_path)
    given = store_of(text, None)
    (tmp_path / "jobs").mkdir()
    monkeypatch.chdir(tmp_path / "jobs")
    check_store(text, given)
    with pytest.raises(SpecError):
        check_store(_with("{backend: sqlite, path: /data/own.db}"), given)


def test_the_store_may_be_named_beside_the_spec():
    """Where the Storage page has it; in both places is a contradiction."""
    beside = f"{document()}\nstorage: {{backend: sqlite, path: /data/own.db}}\n"
    assert store_of(beside, None).to_dsn() == "sqlite:////data/own.db"
    with pytest.raises(SpecError, match=r"line 20: storage\.dsn"):
        store_of(beside.replace("sqlite", "postgres"), None)
    twice = f"{_with('{backend: sqlite, path: /a.db}')}\nstorage: {{backend: sqlite, path: /a}}\n"
    with pytest.raises(SpecError, match="storage: the state store is named twice"):
        store_of(twice, None)
