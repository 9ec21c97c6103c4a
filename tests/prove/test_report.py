"""The proof command and its result files."""

import json

import pytest

from tests.prove import report as report_module
from tests.prove.__main__ import areas, chosen_of, main
from tests.prove.report import Report


def test_every_area_can_be_run_by_its_name():
    from importlib import import_module

    assert "kills" in areas()
    for name in areas():
        assert callable(import_module(f"tests.prove.{name}").prove)


def test_an_unknown_area_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["thrills"])

    assert ended.value.code == 2
    assert "unknown area 'thrills'" in capsys.readouterr().err


def test_an_interrupted_proof_says_that_it_is_not_complete(tmp_path):
    report = Report("example", 3, directory=tmp_path)
    report.add({"result": "ok"})
    told = json.loads((tmp_path / "example.json").read_text())

    assert (told["complete"], told["seeds"], told["cases"]) == (False, 3, [{"result": "ok"}])
    assert len(told["commit"]) == 40

    report.write(complete=True)
    assert json.loads((tmp_path / "example.json").read_text())["complete"]


@pytest.mark.parametrize(
    ("only", "found"),
    [
        ((), [("kills", ())]),
        (("jvm",), [("kills", ("jvm",))]),
        (("postgres",), [("kills_postgres", ())]),
        (("jvm", "postgres"), [("kills", ("jvm",)), ("kills_postgres", ())]),
    ],
)
def test_a_variant_with_a_file_of_its_own_is_chosen_like_a_case(only, found):
    assert chosen_of("kills", only, areas()) == found


@pytest.fixture
def committed(monkeypatch):
    """Git as it answers in a clean checkout."""
    monkeypatch.setattr(report_module, "_git", lambda *words: "" if "status" in words else "a" * 40)


def test_a_resumed_proof_keeps_what_was_good(tmp_path, committed):
    first = Report("example", 1, directory=tmp_path)
    first.add({"border": "one", "seed": 0, "result": "ok"})
    first.add({"border": "two", "seed": 0, "result": "wrong"})

    again = Report("example", 1, directory=tmp_path, resume=True)

    wanted = [name for name in ("one", "two", "three") if again.wants(name, border=name, seed=0)]
    assert wanted == ["two", "three"]
    assert again.cases == first.cases[:1]


def test_a_proof_of_other_code_is_not_resumed(tmp_path, committed, monkeypatch):
    Report("example", 1, directory=tmp_path).add({"result": "ok"})
    monkeypatch.setattr(report_module, "_git", lambda *words: "" if "status" in words else "b" * 40)

    with pytest.raises(ValueError, match="without --resume"):
        Report("example", 1, directory=tmp_path, resume=True)


def test_a_proof_of_some_cases_is_not_complete(tmp_path):
    report = Report("example", 1, directory=tmp_path, only=("jvm",))

    assert report.wants("sink_written/jvm")
    assert not report.wants("sink_written/worker")
    report.write(complete=True)
    assert not json.loads((tmp_path / "example.json").read_text())["complete"]
