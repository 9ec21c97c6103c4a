"""The proof command and its result files."""

import json

import pytest

from tests.prove.__main__ import areas, main
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
