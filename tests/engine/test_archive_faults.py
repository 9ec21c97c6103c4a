"""The archive of a driver that is killed, and on a disk that is full, read-only or not there."""

import subprocess
from contextlib import ExitStack

import pytest

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.engine.archive.folder import ArchiveFolder, EntryName
from airflow_provider_deltaforge.engine.archive.retention import delete_old_daily
from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from airflow_provider_deltaforge.storage.records.record import now_ms
from tests.chaos.faults import fill, small_disk
from tests.engine.driving import Driving
from tests.engine.scripted_run import NAME, ScriptedRun
from tests.engine.test_archive import (
    DAY_MS,
    archive_of,
    archived,
    archived_run,
    expected,
    log_of,
)
from tests.waiting import wait_for

WRITING = [
    (CrashPoint.ARCHIVE_FILE_UNFINISHED, 9),
    (CrashPoint.ARCHIVE_FILES_WRITTEN, 3),
    (CrashPoint.ARCHIVE_STORED, 3),
    pytest.param((CrashPoint.CHECKPOINT_STORED, 3), marks=pytest.mark.long),
    pytest.param((CrashPoint.ARCHIVE_BEGUN, 1), marks=pytest.mark.long),
    pytest.param((CrashPoint.ARCHIVE_OPENED, 1), marks=pytest.mark.long),
]


def scripted_run(tmp_path, more=""):
    policy = f"archive: {{directory: {tmp_path}/archive, flush_secs: 1, flush_bytes: 20000{more}}}"
    run = ScriptedRun(tmp_path, policy=policy, transactions=300)
    run.begin_at(0)
    return run


def run_to_the_end(run):
    run.deliver_all()
    run.want("running")


@pytest.mark.parametrize("hold", WRITING, ids=lambda hold: hold[0].value)
def test_killed_it_has_everything_once(hold, tmp_path):
    run = scripted_run(tmp_path)
    run.kill_at(*hold)
    place = tmp_path / "archive" / NAME
    if hold[0] is CrashPoint.ARCHIVE_FILE_UNFINISHED:
        assert list(place.rglob(".*.tmp"))

    run_to_the_end(run)

    assert run.judge({"tx": 0}) == []
    assert log_of(archive_of(run).open({"tx": 0}))[0] == expected(run, 0, 300)
    (place / "cleaned.json").unlink(missing_ok=True)
    delete_old_daily(ArchiveFolder(str(place.parent), NAME), None, EntryName(99, 0, "opened"))
    assert list(place.rglob(".*.tmp")) == []
    assert log_of(archive_of(run).open({"tx": 0}))[0] == expected(run, 0, 300)
    run.close()


def test_killed_while_it_deletes_it_has_what_is_left_without_a_hole(tmp_path):
    run = scripted_run(tmp_path, ", retention_days: 10")
    started_ms = now_ms() - 30 * DAY_MS
    lines = run.document.splitlines()
    run.document = "\n".join(
        f"      started_ms: {started_ms}" if "started_ms:" in line else line for line in lines
    )
    pipelines.apply(run.store, run.document)
    run_to_the_end(run)
    place = tmp_path / "archive" / NAME
    folder = ArchiveFolder(str(place.parent), NAME)
    before = sorted(folder.names())
    assert len(before) > 5
    (place / "cleaned.json").unlink()
    run.kill_at(CrashPoint.ARCHIVE_OLD_DELETED, 3)
    assert [name for name in sorted(folder.names()) if name in before] == before[3:]

    # Whoever reads now has the rest, and no file that an entry names is missing.
    (span,) = archive_of(run).spans()
    assert log_of(archive_of(run).open(span.start))[0] == expected(run, span.start["tx"], 300)
    driver = run.start()
    wait_for("the rest", (place / "cleaned.json").exists)
    run.stop(driver)
    (span,) = archive_of(run).spans()
    assert (span.start, span.end) == ({"tx": 300}, {"tx": 300})
    assert not list(place.glob("day=*"))
    run.close()


@pytest.mark.long
def test_a_full_or_read_only_disk_or_none_is_waited_for(tmp_path):
    """Mounts file systems, which takes root."""
    place = tmp_path / "mounted"
    place.mkdir()
    with small_disk(tmp_path / "disk", 20_000) as disk, ExitStack() as mounted:
        change("mount", "--bind", disk, place)
        mounted.callback(subprocess.run, ["umount", "-l", str(place)], check=False)
        run = archived_run(
            place, more=", flush_bytes: 4000", transactions=3000, source="rate: 300, started_ms: 1,"
        )
        run.document = run.document.replace("started_ms: 1,", f"started_ms: {now_ms()},")
        run.apply()
        driving = Driving(run)
        for reason, fault, mending in (
            ("No space left", lambda: fill(disk), (disk / "filler").unlink),
            (
                "Read-only file system",
                lambda: change("mount", "-o", "remount,ro,bind", place),
                lambda: change("mount", "-o", "remount,rw,bind", place),
            ),
            (
                "is not there: mount it",
                lambda: change("umount", "-l", place),
                lambda: change("mount", "--bind", disk, place),
            ),
        ):
            wait_for("the archive", lambda: archived(run).position and not archived(run).reason)
            fault()
            wait_for("the reason", lambda: archived(run).reason)
            assert "spec.archive.directory" in archived(run).reason
            assert reason in archived(run).reason
            wait_for("the block", lambda: status(run.store, run.name).status == "blocked")
            at = archived(run).position
            assert at["tx"] < run.checkpoints().load()["out"]["tx"] < 3000
            mending()
            wait_for("the archive", lambda at=at: archived(run).position["tx"] > at["tx"])
        wait_for("delivery", lambda: run.checkpoints().load()["out"] == {"tx": 3000})
        run.want("stopped")
        driving.end()
        assert log_of(archive_of(run).open({"tx": 0}))[0] == expected(run, 0, 3000)
        messages = run.log().messages()
        assert len(messages) == len({message.event_id for message in messages}) == 9000
        assert not list(disk.rglob(".*.tmp"))
        mounted.close()
        assert list(place.iterdir()) == []  # Nothing was written where it was not mounted.


def change(*words):
    subprocess.run(list(map(str, words)), check=True)
