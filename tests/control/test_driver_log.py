"""The end of a driver's log, read through the state store from another machine."""

import logging
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.control.attend import Attendance, attend
from airflow_provider_deltaforge.control.driver_log import LogFollower, keep_last_lines, log_tail
from airflow_provider_deltaforge.control.starting import start, take_generation
from airflow_provider_deltaforge.engine.base.log_shipper import LogOrigin, shipped_log
from airflow_provider_deltaforge.engine.driver.local import run_local
from airflow_provider_deltaforge.storage.contract import Fence
from airflow_provider_deltaforge.storage.distress import JOB_DIRECTORY
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.control import Control
from airflow_provider_deltaforge.storage.records.driver_logs import DriverLogs, LogTail, shortened
from airflow_provider_deltaforge.telemetry import logs
from airflow_provider_deltaforge.telemetry.pipeline_scope import RecentLines
from tests.control.bench import DOCUMENT, job_of
from tests.waiting import wait_until

SECRET = "c4n4ry-7"


@pytest.fixture
def applied(store, monkeypatch, tmp_path):
    """The control record of a pipeline that can run here."""
    monkeypatch.delenv(JOB_DIRECTORY, raising=False)
    monkeypatch.setenv("OUTPUT", str(tmp_path))
    monkeypatch.setattr(logs, "RECENT", RecentLines())
    pipelines.apply(store, DOCUMENT)
    return Control(store, "orders")


@pytest.fixture
def logger():
    """A logger whose lines are printed as a driver's are."""
    before = logging.root.handlers[:], logging.root.level
    logs.configure({"pipeline": "orders"})
    yield logging.getLogger("airflow_provider_deltaforge.test")
    logging.root.handlers[:], logging.root.level = before


def far(control):
    """Make the driver one of another machine; return its handle."""
    handle = {**(control.read().handle or {}), "host": "far-away"}
    control.update(lambda old: old.model_copy(update={"handle": handle}))
    return handle


def test_what_a_driver_logged_is_read_where_it_does_not_run(applied, store, dsn, backend, logger):
    generation = take_generation(store, "orders", "test")
    far(applied)
    logger.warning("password=%s, said before it began", SECRET)
    leaving = threading.Event()
    threading.Timer(0.5, leaving.set).start()
    assert run_local("orders", StoreLocation.from_dsn(dsn), generation, leaving) == 0
    told = log_tail(store, "orders", backend, 200)
    text = "\n".join(told["lines"])
    assert "said before it began" in text
    assert SECRET not in text
    assert told["missing"] is None
    assert told["at_ms"] > 0
    assert log_tail(store, "orders", backend, 1)["lines"] == told["lines"][-1:]


def test_the_file_of_a_driver_is_shipped_with_what_others_print_there(
    applied, store, dsn, backend, tmp_path, monkeypatch
):
    (tmp_path / "driver.log").write_text("26/11/23 WARN JVM: of another program\n")
    monkeypatch.setenv(JOB_DIRECTORY, str(tmp_path))
    take_generation(store, "orders", "test")
    handle = far(applied)
    fence = applied.take_epoch("mine", 1)
    with shipped_log(LogOrigin(StoreLocation.from_dsn(dsn), "orders", "mine", 1), every_s=0.05):
        wait_until(lambda: log_tail(store, "orders", backend, 9)["lines"])
    told = log_tail(store, "orders", backend, 9)
    assert told["lines"] == ["26/11/23 WARN JVM: of another program"]
    assert str(tmp_path) not in repr(told)
    assert handle["host"] != told["host"]
    assert applied.held_epoch("mine") == fence


def test_a_former_driver_overwrites_nothing_and_its_lines_stay_in_front(
    applied, store, dsn, backend, logger
):
    origin = LogOrigin(StoreLocation.from_dsn(dsn), "orders", "former", 1)
    applied.take_epoch("former")
    logger.warning("of the former")
    with shipped_log(origin):
        pass
    applied.take_epoch("newer")
    logger.warning("too late")
    with shipped_log(origin):
        pass
    (line,) = log_tail(store, "orders", backend, 9)["lines"]
    assert "of the former" in line
    with shipped_log(LogOrigin(origin.location, "orders", "newer", 2)):
        pass
    text = "\n".join(log_tail(store, "orders", backend, 9)["lines"])
    assert text.index("of the former") < text.index("too late")


def test_nothing_is_written_while_nothing_is_logged(applied, store, dsn, logger):
    applied.take_epoch("mine")
    logger.warning("once")
    with shipped_log(LogOrigin(StoreLocation.from_dsn(dsn), "orders", "mine", 1), every_s=0.02):
        tails = DriverLogs(store, "orders")
        wait_until(lambda: tails.tail("driver"))
        store.delete("logs", "orders/driver")
        time.sleep(0.1)
    assert tails.tail("driver") is None


def test_the_supervisor_ships_what_a_driver_said_that_died_at_once(applied, store, dsn, backend):
    started = start(store, job_of(dsn, "exit:2"), backend, "me")
    task = Attendance(store, backend, replace(job_of(dsn, "exit:2"), generation=1), "me")
    wait_until(lambda: backend.status(started.handle).state.value == "ended")
    (Path(started.handle["directory"]) / "driver.log").write_text("cannot import: no module\n")
    assert attend(task, stopping=lambda: False, changed=lambda _: None).action == "give_up"
    far(applied)
    assert log_tail(store, "orders", backend, 9)["lines"] == ["cannot import: no module"]


def test_the_supervisor_ships_nothing_of_a_driver_that_was_succeeded(applied, store, backend, dsn):
    start(store, job_of(dsn), backend, "me")
    real = store.transact

    class Racing:
        def __getattr__(self, name):
            return getattr(store, name)

        def transact(self, writes, fence: Fence):
            applied.update(lambda old: old.model_copy(update={"generation": 9}))
            return real(writes, fence)

    wait_until(lambda: log_tail(store, "orders", backend, 9)["lines"])
    keep_last_lines(Racing(), "orders", backend)
    assert DriverLogs(store, "orders").tail("driver") is None


def test_the_log_goes_with_its_pipeline(applied, store):
    fence = applied.take_epoch("mine")
    tail = LogTail(driver="mine", generation=1, host="h", at_ms=1, lines=["x"])
    store.transact([DriverLogs(store, "orders").put("driver", tail)], fence)
    applied.delete()
    assert store.items("logs") == []


def test_a_tail_is_short_and_its_lines_are_in_order(store):
    lines = [f"{number} {'x' * 3000}" for number in range(500)]
    kept = shortened(lines)
    assert kept[-1].startswith("499 ")
    assert sum(len(line) for line in kept) <= 1 << 16
    assert len(shortened(str(number) for number in range(500))) == 300
    assert shortened(["half \ud83d", f"mysql://u:{SECRET}@h"]) == ["half ?", "mysql://u:***@h"]
    control, known = Control(store, "orders"), DriverLogs(store, "orders")
    fence = control.take_epoch("mine")

    def tail(*texts):
        return LogTail(driver="mine", generation=1, host="h", at_ms=1, lines=list(texts))

    of_driver = tail("2026-11-23T15:00:01.000Z a", "  traceback", "2026-11-23T15:00:03.000Z c")
    of_lane = tail('{"time":"2026-11-23T15:00:02.000Z","message":"b"}')
    writes = [known.put("driver", of_driver), known.put("lane", of_lane)]
    store.transact(writes, fence)
    assert [line[-1] for line in known.lines()] == ["a", "k", "}", "c"]


def shipped(store, lines, at_ms, *, driver="first", generation=1, process="driver"):
    """Let a driver ship these lines, as it does every two seconds."""
    tail = LogTail(driver=driver, generation=generation, host="far", at_ms=at_ms, lines=lines)
    store.transact([DriverLogs(store, "orders").put(process, tail)])


def numbered(first, last):
    return [f"line {number}" for number in range(first, last)]


def test_a_log_is_followed_line_by_line_while_its_end_is_replaced(store):
    follower = LogFollower("orders", generation=1, lines_max=100)
    assert follower.new_lines(store) == []
    shipped(store, numbered(0, 30), 1)
    assert follower.new_lines(store) == numbered(0, 30)
    assert follower.new_lines(store) == []
    shipped(store, numbered(10, 40), 2)
    shipped(store, numbered(0, 2), 2, process="lane")
    assert follower.new_lines(store) == [*numbered(30, 40), *numbered(0, 2)]

    shipped(store, numbered(60, 63), 3)
    assert follower.new_lines(store)[1:] == numbered(60, 63)
    shipped(store, numbered(60, 360), 4)
    note, *lines = follower.new_lines(store)
    assert (note, lines) == ("(197 lines are in the driver's own log only)", numbered(260, 360))
    shipped(store, numbered(60, 360), 5)
    assert follower.new_lines(store) == []

    shipped(store, ["begins"], 6, driver="second")
    assert follower.new_lines(store) == ["begins"]


def test_a_follower_that_comes_later_sees_the_end_only_and_no_earlier_generation(store):
    shipped(store, numbered(0, 90), 1)
    assert LogFollower("orders", 1, 100).new_lines(store) == numbered(70, 90)
    assert LogFollower("orders", 2, 100).new_lines(store) == []
    assert LogFollower("orders", 1, 0).new_lines(store) == []


def test_a_container_s_output_is_its_log_until_the_driver_ships_one_and_again_at_its_end(
    applied, store, backend, tmp_path
):
    (tmp_path / "driver.log").write_text("No module named 'x'\n")
    handle = {"application_id": "application_1_0001", "directory": str(tmp_path)}
    applied.update(lambda old: old.model_copy(update={"handle": handle, "generation": 1}))
    printed = log_tail(store, "orders", backend, 9)
    assert (printed["lines"], printed["host"]) == (["No module named 'x'"], "application_1_0001")
    tail = LogTail(driver="d", generation=1, host="node-7", at_ms=5, lines=["is running"])
    store.transact([DriverLogs(store, "orders").put("driver", tail)])

    shipped = log_tail(store, "orders", backend, 9)
    assert (shipped["lines"], shipped["host"], shipped["at_ms"]) == (["is running"], "node-7", 5)

    keep_last_lines(store, "orders", backend)

    assert log_tail(store, "orders", backend, 9)["lines"] == ["No module named 'x'"]
