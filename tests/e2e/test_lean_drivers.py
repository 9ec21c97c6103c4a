"""What drivers have loaded: no compiler and no pandas, and on Spark the kept classes."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e import pipeline_run, postgres_run, postgres_shop, shop
from tests.servers import sql
from tests.servers.process import HOST, family, free_port
from tests.sources.turso import shop_run as turso_shop_run
from tests.waiting import wait_for

STALE = "run `deltaforge precompile`: a kernel was changed since, or its arguments were"


def files_of(pid):
    """Return the files that a process and its children have mapped."""
    lines = [
        line
        for member in family(pid)
        for line in Path(f"/proc/{member}/maps").read_text().splitlines()
    ]
    return {Path(words[5]) for line in lines if len(words := line.split(maxsplit=5)) > 5}


def check(files, master):
    names = {file.name for file in files}
    assert any(name.startswith("libarrow.so") for name in names)
    assert "libllvmlite.so" not in names, STALE
    assert not any("pandas" in file.parts for file in files)
    assert any(name.startswith("shared-") for name in names)
    if master is not None:
        assert any(name.startswith("spark-") and name.endswith(".jsa") for name in names), STALE


@pytest.mark.parametrize(
    "master",
    [None, pytest.param("local[2]", marks=pytest.mark.spark)],
    ids=["process", "spark"],
)
def test_a_driver_of_mysql_has_no_compiler(tmp_path, mysql_server, kafka_server, master):
    name = f"lean_{'spark' if master else 'process'}"
    run = pipeline_run.run_in(
        tmp_path, mysql_server, kafka_server, name, master=master, own_process=True
    )
    driver = run.start()
    run.wait_status("running")
    with shop.Writers(mysql_server, name):
        run.wait_events(100)
        # What a schema change is read by comes from the library as well.
        sql.execute(mysql_server, f"ALTER TABLE {name}.orders ADD COLUMN later INT")
        run.wait_events(100)
        files = files_of(driver.pid)
    assert run.stop(driver) == 0

    check(files, master)


def test_a_driver_of_postgres_has_no_compiler(tmp_path, postgres_server, kafka_server):
    with postgres_run.run_in(
        tmp_path, postgres_server, kafka_server, "lean", own_process=True
    ) as run:
        driver = run.start()
        run.wait_status("running")
        with postgres_shop.Writers(postgres_server, "lean"):
            run.wait_events(100)
            files = files_of(driver.pid)
        assert run.stop(driver) == 0

    check(files, None)


@pytest.mark.parametrize("mode", ["native", "triggers"])
def test_a_driver_of_turso_has_no_compiler(tmp_path, mode):
    shop_file, out = tmp_path / "shop.db", tmp_path / "out.jsonl"
    written = turso_shop_run.Shop(shop_file, mode)
    written.trade(5)
    fields = {"mode": mode, "tables": "['*']", "snapshot": "initial", "directory": tmp_path}
    document = tmp_path / "lean.yaml"
    document.write_text(turso_shop_run.DOCUMENT.format(name="lean", path=shop_file, **fields))
    words = ["run", "--local", "--store", f"sqlite:///{tmp_path}/state.db", "--api-addr"]
    command = [Path(sys.executable).with_name("deltaforge"), *words, f"{HOST}:{free_port()}"]
    with subprocess.Popen([*command, document], stderr=subprocess.DEVNULL) as driver:
        try:
            wait_for("the copy", lambda: out.exists() and lines_of(out) > 5)
            written.trade(20)
            wait_for("changes", lambda: out.read_text().count('"op":"r"') + 20 < lines_of(out))
            files = files_of(driver.pid)
        finally:
            driver.terminate()

    check(files, None)


def lines_of(path):
    return path.read_text().count("\n")
