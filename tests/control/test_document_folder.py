"""Documents of a folder as they come, change and go."""

import pytest

from airflow_provider_deltaforge.control.document_folder import DocumentFolder
from airflow_provider_deltaforge.errors import SpecError
from tests.control.bench import DOCUMENT


@pytest.fixture
def refused():
    return []


@pytest.fixture
def folder(tmp_path, refused):
    (tmp_path / "orders.yaml").write_text(DOCUMENT)
    return DocumentFolder([tmp_path], lambda file, reason: refused.append((file.name, reason)))


def users(comment=""):
    return DOCUMENT.replace("name: orders", "name: users") + comment


def test_what_is_there_at_first_counts_at_once(folder):
    assert set(folder.look()) == {"orders"}


def test_a_file_counts_once_two_looks_find_it_the_same(folder, tmp_path):
    folder.look()
    (tmp_path / "users.yaml").write_text(users()[:40])
    assert set(folder.look()) == {"orders"}
    (tmp_path / "users.yaml").write_text(users())
    assert set(folder.look()) == {"orders"}
    assert set(folder.look()) == {"orders", "users"}


def test_a_change_that_is_wrong_leaves_what_was_right(folder, tmp_path, refused):
    before = folder.look()
    (tmp_path / "orders.yaml").write_text("apiVersion: {")
    for _ in range(3):
        assert folder.look() == before
    assert [name for name, _ in refused] == ["orders.yaml"]
    (tmp_path / "orders.yaml").write_text(DOCUMENT + "# mended\n")
    folder.look()
    assert folder.look()["orders"].text.endswith("# mended\n")


def test_a_file_has_gone_once_two_looks_miss_it(folder, tmp_path):
    folder.look()
    (tmp_path / "orders.yaml").rename(tmp_path / "aside")
    assert set(folder.look()) == {"orders"}
    (tmp_path / "aside").rename(tmp_path / "orders.yaml")
    assert set(folder.look()) == {"orders"}
    (tmp_path / "orders.yaml").unlink()
    folder.look()
    assert folder.look() == {}


def test_a_folder_that_is_away_takes_nothing_with_it(tmp_path, refused):
    place = tmp_path / "mounted"
    place.mkdir()
    (place / "orders.yaml").write_text(DOCUMENT)
    folder = DocumentFolder([place], lambda *_: None)
    before = folder.look()
    place.rename(tmp_path / "away")
    for _ in range(3):
        with pytest.raises(SpecError, match="cannot be read"):
            folder.look()
    (tmp_path / "away").rename(place)
    assert folder.look() == before


def test_of_two_files_with_one_pipeline_the_first_counts(folder, tmp_path, refused):
    (tmp_path / "twice.yaml").write_text(DOCUMENT)
    (tmp_path / ".hidden.yaml").write_text(users())
    assert {name: found.file.name for name, found in folder.look().items()} == {
        "orders": "orders.yaml"
    }
    folder.look()
    [(name, reason)] = refused
    assert name == "twice.yaml"
    assert "already in" in reason
    (tmp_path / "orders.yaml").unlink()
    for _ in range(2):
        folder.look()
    assert {name: found.file.name for name, found in folder.look().items()} == {
        "orders": "twice.yaml"
    }
    assert folder.refused == {}
