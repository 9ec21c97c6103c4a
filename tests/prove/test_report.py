"""The proof command, its result files, and its workers."""

import json
import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest

from tests.prove import evidence, kills
from tests.prove import report as report_module
from tests.prove.__main__ import AREAS, main, prepared
from tests.prove.pool import Pool, ordered
from tests.prove.report import Report, units_missing
from tests.prove.unit import Unit
from tests.servers.process import family
from tests.waiting import PATIENCE_S, wait_for

CASES = [{"source": "mysql", "seed": 0}, {"source": "mysql", "seed": 1}]


def good(case):
    return {**case, "result": "ok"}


def unit(name, run, *cases, **settings):
    asked = {"kind": "test", "seconds": 1.0, "limit_s": 60.0, **settings}
    return Unit("example", name, f"{__name__}:{run}", cases or ({"name": name},), **asked)


# ---- what the workers of these tests run


def hold(task):
    for case in task.cases:
        task.add(good(case))


def stay(task):
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    (task.home / "child").write_text(str(child.pid))
    task.add(good(task.cases[0]))
    time.sleep(600)


def leave_behind(task):
    child = subprocess.Popen(["setsid", "sh", "-c", "sleep 600 & echo $! > child"], cwd=task.home)
    child.wait()
    hold(task)


def fail(task):
    raise RuntimeError("nothing works")


def die(task):
    os.kill(os.getpid(), signal.SIGKILL)


# ---- areas and files


@pytest.mark.parametrize("name", AREAS)
def test_every_area_has_units_that_can_be_run(name):
    area = import_module(f"tests.prove.{name}")
    units = area.units(2)

    assert len({unit.name for unit in units}) == len(units) > 0
    for each in units:
        module, _, function = each.run.partition(":")
        assert callable(getattr(import_module(module), function))
        assert each.cases
        assert each.seconds < each.limit_s


def test_an_unknown_area_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["thrills"])

    assert ended.value.code == 2
    assert "unknown area 'thrills'" in capsys.readouterr().err


def test_a_forecast_runs_nothing(capsys):
    assert main(["all", "--forecast", "--jobs", "2"]) == 0
    assert "minutes with 2 jobs" in capsys.readouterr().out


@pytest.fixture
def committed(monkeypatch):
    """Let reports find a clean tree at one commit, whatever it is here."""
    monkeypatch.setattr(evidence, "git", lambda *words: "" if "status" in words else "a" * 40)


def test_a_file_is_complete_when_every_case_has_held(tmp_path, committed):
    report = Report("example", 2, CASES, directory=tmp_path)
    said = []
    for case in CASES:
        report.add(good(case))
        said.append(json.loads(report.path.read_text()))

    assert [told["complete"] for told in said] == [False, True]
    assert said[1]["coverage"] == {"held": {"mysql": "2 of 2"}}
    assert len(said[1]["commit"]) == 40


@pytest.mark.parametrize(
    ("settings", "case"),
    [
        ({}, {"source": "mysql", "seed": 1, "result": "wrong"}),
        ({"whole": False}, good(CASES[1])),
        ({"lacks": lambda _: ["a crash point"]}, good(CASES[1])),
    ],
    ids=["wrong", "not everything", "lacking"],
)
def test_a_file_that_does_not_show_everything_is_not_complete(tmp_path, committed, settings, case):
    report = Report("example", 2, CASES, directory=tmp_path, **settings)
    report.add(good(CASES[0]))
    report.add(case)

    assert json.loads(report.path.read_text())["complete"] is False


def test_uncommitted_code_makes_no_complete_file(tmp_path, monkeypatch):
    monkeypatch.setattr(evidence, "git", lambda *words: "a" * 40)
    report = Report("example", 2, CASES, directory=tmp_path)
    for case in CASES:
        report.add(good(case))

    assert json.loads(report.path.read_text())["complete"] is False


def test_a_resumed_proof_keeps_what_was_good(tmp_path, committed):
    first = Report("example", 2, CASES, directory=tmp_path)
    first.add(good(CASES[0]))
    first.add({**CASES[1], "result": "wrong"})

    again = Report("example", 2, CASES, directory=tmp_path, resume=True)
    units = [unit("both", "hold", *CASES), unit("first", "hold", CASES[0])]

    assert again.missing() == [CASES[1]]
    assert again.cases == first.cases[:1]
    assert [(u.name, list(u.cases)) for u in units_missing(units, again)] == [("both", [CASES[1]])]


def test_a_proof_of_other_code_is_not_resumed(tmp_path, committed, monkeypatch):
    Report("example", 2, CASES, directory=tmp_path).add(good(CASES[0]))
    monkeypatch.setattr(evidence, "git", lambda *words: "" if "status" in words else "b" * 40)

    with pytest.raises(ValueError, match="without --resume"):
        Report("example", 2, CASES, directory=tmp_path, resume=True)


def test_a_whole_proof_of_other_code_makes_room_for_a_new_one(tmp_path, committed, monkeypatch):
    whole = Report("example", 2, CASES, directory=tmp_path)
    for case in CASES:
        whole.add(good(case))
    monkeypatch.setattr(evidence, "git", lambda *words: "" if "status" in words else "b" * 40)

    assert Report("example", 2, CASES, directory=tmp_path, resume=True).missing() == CASES


def test_some_units_of_an_area_make_no_whole_proof():
    reports, units = prepared(["kills"], 1, ["turso/process"], resume=False)

    assert [unit.name for unit in units] == ["turso/process/0"]
    assert not reports["kills"].whole


def test_kills_lack_what_no_chain_has_shown():
    every = [
        {
            "source": s,
            "place": p,
            "kills": [f"{crash_point}:1 {who}" for crash_point, who in kills.cells(p)],
        }
        for s in kills.SHOPS
        for p in kills.VICTIMS
    ]

    assert kills.lacking(every) == []
    every[0]["kills"].remove("sink_written:1 process")
    assert kills.lacking(every) == ["mysql process: sink_written / process"]


def test_a_code_is_that_of_its_commit():
    commit = evidence.git("rev-parse", "HEAD")

    assert report_module.code_now().startswith(evidence.code_at(commit))


# ---- workers


@pytest.fixture
def jobs():
    return 2


@pytest.fixture
def pool(tmp_path, jobs):
    class Watched(Pool):
        def __init__(self):
            self.cases, self.texts = [], []
            add = self.cases.append
            super().__init__(jobs, tmp_path / "pool", lambda _, case: add(case), self.texts.append)

    return Watched()


def test_units_are_run_and_leave_nothing(pool, tmp_path):
    pool.run([unit("one", "hold", {"n": 1}, {"n": 2}), unit("two", "hold", {"n": 3})])

    assert sorted(case["n"] for case in pool.cases) == [1, 2, 3]
    assert pool.texts == []
    assert list((tmp_path / "pool").glob("example-*")) == []
    assert [pid for pid in family(os.getpid()) if "tests.prove.worker" in line_of(pid)] == []


def test_what_hangs_is_ended_and_counts_as_failed(pool, tmp_path):
    pool.run([unit("hangs", "stay", {"n": 1}, {"n": 2}, limit_s=15.0)])
    child = int((tmp_path / "pool" / "example-hangs" / "child").read_text())

    assert [(case["n"], case["result"]) for case in pool.cases] == [(1, "ok"), (2, "wrong")]
    assert "it hung" in pool.cases[1]["wrong"][0]
    assert "kept in" in pool.texts[0]
    assert "sleep" not in line_of(child)


@pytest.mark.parametrize("jobs", [1])
def test_a_worker_that_dies_does_not_take_the_rest_along(pool):
    pool.run([unit("dies", "die"), unit("fails", "fail"), unit("good", "hold")])

    assert {case["name"]: case["result"] for case in pool.cases} == {
        "dies": "wrong",
        "fails": "wrong",
        "good": "ok",
    }
    assert "nothing works" in str(pool.cases)


def test_what_a_unit_leaves_behind_is_ended(pool, tmp_path):
    kept = tmp_path / "pool" / "example-untidy"
    alive = []

    def watch():
        if (kept / "child").exists():
            alive.append(int((kept / "child").read_text() or 0))

    pool.run([unit("untidy", "leave_behind", {"n": 1}, {"n": 2})], watch)

    wait_for("its end", lambda: not any("sleep" in line_of(pid) for pid in alive))


def test_an_interrupt_ends_every_worker(tmp_path):
    program = (
        "import signal, sys; from pathlib import Path\n"
        "from tests.prove.pool import Pool\n"
        "from tests.prove.test_report import unit\n"
        # A shell has its background jobs ignore it, and whoever they start inherits that.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "pool = Pool(2, Path(sys.argv[1]), lambda *_: None, print)\n"
        "try: pool.run([unit('hangs', 'stay'), unit('too', 'stay')])\n"
        "except KeyboardInterrupt: sys.exit(130)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)])
    left = [tmp_path / "example-hangs" / "child", tmp_path / "example-too" / "child"]
    wait_for("both units", lambda: all(path.exists() and path.read_text() for path in left))

    child.send_signal(signal.SIGINT)

    assert child.wait(PATIENCE_S) == 130
    pids = [int(path.read_text()) for path in left]
    wait_for("their end", lambda: not any("sleep" in line_of(pid) for pid in pids))


def test_long_units_start_first_and_servers_stay_together():
    units = [
        unit("a", "hold", servers=("mysql",)),
        unit("b", "hold", servers=("turso",)),
        unit("c", "hold", servers=("mysql",)),
        unit("long", "hold", seconds=500.0),
    ]

    assert [each.name for each in ordered(units)] == ["long", "a", "c", "b"]


def line_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().replace("\0", " ")
    except OSError:
        return ""
