"""The archive of the log: all of it, once, in order, whatever is killed or away."""

import json
import shutil
import time
from dataclasses import replace

import duckdb
import pytest

from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.engine.archive.folder import (
    ArchiveEntry,
    ArchiveFolder,
    EntryName,
    valid_names,
)
from airflow_provider_deltaforge.engine.archive.lane_archive import LaneArchive
from airflow_provider_deltaforge.engine.archive.reader import Archive
from airflow_provider_deltaforge.engine.archive.retention import delete_old_daily
from airflow_provider_deltaforge.engine.base.heartbeat import Heartbeat
from airflow_provider_deltaforge.engine.base.lane_stats import LaneStats
from airflow_provider_deltaforge.errors import FatalError, PositionLostError, RetryableError
from airflow_provider_deltaforge.sources.scripted import ScriptedSource
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.storage.records.record import now_ms
from airflow_provider_deltaforge.storage.records.stats import ArchiveProgress
from tests.engine.driving import Driving
from tests.engine.in_process import InProcess
from tests.waiting import wait_for

DAY_MS = 86_400_000


def archived_run(directory, *, more="", **options):
    policy = f"archive: {{directory: {directory}, flush_secs: 1{more}}}"
    run = InProcess(policy=policy, **options)
    run.begin_at(out=0)
    return run


def run_to(run, tx):
    """Let a driver deliver up to a transaction, and end."""
    driving = Driving(run)
    wait_for("delivery", lambda: run.checkpoints().load().get("out") == {"tx": tx})
    run.want("stopped")
    assert driving.end().why == "stopped"
    run.want("running")


def archive_of(run):
    return Archive.of(load(run.document))


def log_of(reader):
    """Return (transaction, row, event id) of what a reader has, and the schemas of its rows."""
    events, schemas = [], []
    while (segment := reader.read(0)) is not None:
        batch = reader.decode(segment)
        for event in batch.rows.to_pylist():
            assert str(batch.positions.after(event["tx"])["tx"]) == event["tx_id"]
            events.append((int(event["tx_id"]), event["row"], event["event_id"]))
        schemas += [schema for schema in batch.schemas if schema not in schemas]
    return events, schemas


def following(reader):
    """Return what a reader that was at the archive's end has after its next look."""
    events = []
    deadline = time.monotonic() + 30
    while not events and time.monotonic() < deadline:
        events = log_of(reader)[0]
    return events


def expected(run, after, upto):
    source = load(run.document).spec.source
    return [(tx, row, source.event_id(tx, row)) for tx, row, _ in source.events(after + 1, upto)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return a pipeline whose log of 120 transactions is archived, in several entries."""
    directory = tmp_path_factory.mktemp("archive")
    more = ", flush_bytes: 20000"
    run = archived_run(directory, more=more, transactions=120, source="alter_every: 40,")
    run_to(run, 120)
    run.directory = directory
    return run


class TestReading:
    @pytest.fixture
    def run(self, whole):
        return whole

    def test_what_was_read_is_read_again_from_any_position(self, run):
        archive, source = archive_of(run), load(run.document).spec.source
        events, schemas = log_of(archive.open({"tx": 0}))

        assert events == expected(run, 0, 120)
        assert schemas == log_of(source.open({"tx": 0}))[1]
        for start in (1, 9, 10, 11, 64, 119, 120):
            assert log_of(archive.open({"tx": start}))[0] == expected(run, start, 120)
        with pytest.raises(PositionLostError, match="does not have"):
            archive.open({"tx": 121})

    def test_times_are_found(self, run):
        archive = archive_of(run)

        found = [archive.position_at(ms)["tx"] for ms in (2, 77, 10**9)]
        assert found == [1, 76, 120]
        with pytest.raises(PositionLostError, match="committed later"):
            archive.position_at(1)

    def test_of_whole_seconds_all_of_one_lies_behind_a_time(self, tmp_path):
        run = archived_run(tmp_path, transactions=9, source="rate: 1, started_ms: 1000000,")
        run_to(run, 9)
        archive = archive_of(run)

        assert [archive.position_at(ms)["tx"] for ms in (1_005_000, 1_005_999)] == [4, 4]
        with pytest.raises(PositionLostError, match="committed later"):
            archive.position_at(1_001_999)

    def test_others_read_the_files(self, run):
        rows = duckdb.sql(
            f"SELECT day, \"table\", tx_id, hex(event_id), after ->> 'id', committed_at "
            f"FROM read_parquet('{run.directory}/*/day=*/*/*.parquet', hive_partitioning=true) "
            "ORDER BY committed_at, row"
        ).fetchall()

        assert [(int(tx), bytes.fromhex(name)) for _, _, tx, name, *_ in rows] == [
            (tx, name) for tx, _, name in expected(run, 0, 120)
        ]
        assert {(str(day), table) for day, table, *_ in rows} == {("1970-01-01", "script.rows")}
        assert rows[0][5].timestamp() == 0.001

    def test_a_damaged_file_is_named(self, run, tmp_path):
        copy = tmp_path / "copy"
        shutil.copytree(run.directory, copy)
        folder = ArchiveFolder(str(copy), run.name)
        archive = Archive(folder, load(run.document).spec.source)
        archive.refresh()
        path = copy / run.name / archive.row_files()[0].path
        path.write_bytes(path.read_bytes()[:-1] + b"x")

        with pytest.raises(FatalError, match="is damaged"):
            log_of(archive.open({"tx": 0}))
        path.unlink()
        with pytest.raises(PositionLostError, match="not there any more"):
            log_of(archive.open({"tx": 0}))


class TestTheSourceKeepsItsLog:
    def test_what_the_archive_lacks_is_read_again_for_it_alone(self, tmp_path):
        run = archived_run(tmp_path, transactions=60)
        run_to(run, 60)
        delivered = len(run.log().messages())
        newest = max(ArchiveFolder(str(tmp_path), run.name).names())
        (tmp_path / run.name / newest.path).unlink()  # As if it had been killed before.
        assert log_of(archive_of(run).open({"tx": 0}))[0] == []

        driving = Driving(run)
        wait_for("the archive", lambda: log_of(archive_of(run).open({"tx": 0}))[0])
        run.want("stopped")
        driving.end()

        assert log_of(archive_of(run).open({"tx": 0}))[0] == expected(run, 0, 60)
        assert len(run.log().messages()) == delivered

    def test_what_the_source_has_dropped_is_a_hole(self, tmp_path):
        run = archived_run(tmp_path, transactions=60)
        run_to(run, 60)
        run.begin_at(out=90)
        source = "purged_before: 80, keys"
        run.document = run.document.replace("transactions: 60", "transactions: 100")
        run.document = run.document.replace("keys", source)
        run.apply()
        run_to(run, 100)

        archive = archive_of(run)
        holes = [(hole.start, hole.end) for hole in archive.holes()]
        assert holes == [({"tx": 60}, {"tx": 90})]
        assert log_of(archive.open({"tx": 90}))[0] == expected(run, 90, 100)
        assert log_of(archive.open({"tx": 5}, upto={"tx": 60}))[0][-1][0] == 60
        with pytest.raises(PositionLostError, match="transaction 61 is gone"):
            archive.open({"tx": 5})
        assert status(run.store, run.name).archive.holes == 1

    def test_delivery_goes_on_until_too_much_waits(self, tmp_path):
        place = tmp_path / "place"
        run = archived_run(
            place, more=", flush_bytes: 4000", transactions=400, source="rate: 200, started_ms: 1,"
        )
        run.document = run.document.replace("started_ms: 1,", f"started_ms: {now_ms()},")
        run.apply()
        driving = Driving(run)
        wait_for("the archive", lambda: archived(run).position)
        elsewhere = place.rename(tmp_path / "elsewhere")
        place.mkdir()  # As it is where a disk was mounted.

        wait_for("the reason", lambda: archived(run).reason)
        assert "spec.archive.directory: an archive at" in archived(run).reason
        assert "mount it" in archived(run).reason
        begun_ms = load(run.document).spec.source.started_ms
        oldest_ms = begun_ms + 5 * archived(run).position["tx"]
        wait_for("its age", lambda: abs(now_ms() - archived(run).lag_ms - oldest_ms) < 300)
        with pytest.raises(RetryableError, match="is not there: mount it"):
            archive_of(run)
        wait_for("the block", lambda: status(run.store, run.name).status == "blocked")
        blocked = status(run.store, run.name)
        assert "archive: spec.archive.directory:" in blocked.reason
        assert blocked.position["tx"] < 400

        place.rmdir()  # Nothing was written there.
        elsewhere.rename(place)
        wait_for("delivery", lambda: run.checkpoints().load()["out"] == {"tx": 400})
        assert archived(run).reason is None
        run.want("stopped")
        driving.end()
        assert log_of(archive_of(run).open({"tx": 0}))[0] == expected(run, 0, 400)


def archived(run):
    return status(run.store, run.name).archive or ArchiveProgress()


class TestOwners:
    def test_an_archive_of_another_store_is_refused(self, tmp_path):
        run = archived_run(tmp_path, transactions=5)
        run_to(run, 5)
        owner = tmp_path / run.name / "archive.json"
        owner.write_text(json.dumps({**json.loads(owner.read_text()), "store": "another"}))

        outcome = Driving(run).end()
        assert outcome.error_class == "fatal"
        assert "another state store" in outcome.reason

    def test_a_restored_store_is_refused(self, tmp_path):
        run = archived_run(tmp_path, transactions=5)
        run_to(run, 5)
        log = tmp_path / run.name / "log"
        late = EntryName(99, 0, "opened", (2, 1))
        shutil.copy(next(log.glob("*.opened.json")), tmp_path / run.name / late.path)

        assert "written by a later driver" in Driving(run).end().reason

    def test_one_that_is_not_mounted_is_waited_for(self, tmp_path):
        place = tmp_path / "place"
        run = archived_run(place, transactions=30)
        run_to(run, 30)
        place.rename(tmp_path / "elsewhere")
        driving = Driving(run)
        wait_for("the block", lambda: status(run.store, run.name).status == "blocked")
        assert "is not there: mount it" in status(run.store, run.name).reason

        (tmp_path / "elsewhere").rename(place)
        wait_for("the end of it", lambda: status(run.store, run.name).status == "running")
        run.want("stopped")
        driving.end()


class SlowFolder(ArchiveFolder):
    """A large archive: it takes a while to list all names."""

    lists = 0

    def names(self):
        self.lists += 1
        time.sleep(0.3)
        return super().names()


def test_one_who_follows_a_large_archive_lists_all_of_it_rarely(tmp_path):
    folder = SlowFolder(str(tmp_path), "large")
    folder.begin({})

    def write(epoch, number, kind, start, after=None):
        entry = ArchiveEntry(start={"tx": start}, end={"tx": start + 1}, written_ms=0)
        folder.write_entry(EntryName(epoch, number, kind, after), entry)

    write(1, 1, "segment", 0)
    archive = Archive(folder, ScriptedSource())
    archive.follow()
    for number in (2, 3, 4):
        write(1, number, "segment", number - 1)
        archive.follow()
        assert [span.end for span in archive.spans()] == [{"tx": number}]
    write(1, 5, "gap", 4)
    archive.follow()
    assert archive.names_after(EntryName(1, 4, "segment")) == [EntryName(1, 5, "gap")]
    assert folder.lists == 1
    write(2, 0, "opened", 4, (1, 4))
    wait_for("another list", lambda: archive.follow() or folder.lists == 2)
    assert archive.names_after(EntryName(1, 4, "segment")) == [EntryName(2, 0, "opened", (1, 4))]


def test_what_an_older_lane_still_writes_is_void():
    first = [EntryName(1, 0, "opened"), EntryName(1, 1, "segment"), EntryName(1, 2, "segment")]
    second = [EntryName(4, 0, "opened", (1, 2)), EntryName(4, 1, "segment")]
    late = [EntryName(1, 3, "segment"), EntryName(3, 0, "opened", (1, 3))]

    assert valid_names([*late, *second, *first]) == [*first, *second]
    assert valid_names([*late, *first]) == [*first, *late]
    assert valid_names(second[1:] + first) == second[1:]  # The rest was deleted for its age.
    assert [EntryName.parse(name.path) for name in second] == second


class TestWriting:
    @pytest.fixture
    def run(self, tmp_path):
        more = ", flush_bytes: 1"
        return archived_run(tmp_path, more=more, transactions=4, rows=10)

    @pytest.fixture
    def opened(self, run):
        context = run.context()
        stats = LaneStats()
        archive = LaneArchive(context, stats, Heartbeat(context, stats, 600, "running"))
        tap = archive.begin({"tx": 0}, anew=False)
        assert tap.read_from == {"tx": 0}
        yield archive, tap
        archive.close()

    def parts_of(self, run, tx):
        """Return a transaction in pieces of three rows, as a log's segments may cut it."""
        source = load(run.document).spec.source.model_copy(update={"chunk_transactions": 1})
        reader = source.open({"tx": tx - 1})
        whole = reader.decode(reader.read(1))
        for start in range(0, 10, 3):
            stop = min(start + 3, 10)
            is_open = stop < 10
            end = {"tx": tx - 1} if is_open else whole.end
            part = whole.slice(start, stop)
            yield replace(part, open_tx=is_open, continues=start > 0, end=end)

    def test_a_transaction_is_there_wholly_or_not_at_all(self, run, opened, tmp_path):
        archive, tap = opened
        *parts, last = self.parts_of(run, 1)
        for part in parts:
            tap.take(part)
        data = ArchiveFolder(str(tmp_path), run.name).data_files
        wait_for("a file of a part", data)
        assert log_of(archive_of(run).open({"tx": 0}))[0] == []
        tap.take(last)
        wait_for("its end", lambda: archive.earliest({"tx": 9}) == {"tx": 1})

        reader = archive_of(run).open({"tx": 0})
        assert log_of(reader)[0] == expected(run, 0, 1)

        tap = archive.begin({"tx": 0}, anew=False)
        assert tap.read_from == {"tx": 0}
        for tx in (1, 2):
            for part in self.parts_of(run, tx):
                tap.take(part)
        wait_for("the next", lambda: archive.earliest({"tx": 9}) == {"tx": 2})
        assert log_of(archive_of(run).open({"tx": 0}))[0] == expected(run, 0, 2)
        assert archive.has_news()
        assert not archive.has_news()

    def test_a_log_that_is_opened_again_is_taken_from_the_last_end(self, run, opened):
        archive, tap = opened
        for part in [*self.parts_of(run, 1), next(self.parts_of(run, 2))]:
            tap.take(part)
        wait_for("the first", lambda: archive.earliest({"tx": 9}) == {"tx": 1})
        late = tap
        tap = archive.begin({"tx": 2}, anew=False)
        assert tap.read_from == {"tx": 1}
        late.take(next(self.parts_of(run, 3)))  # Of a decoder that has not ended yet.
        for tx in (2, 3):
            for part in self.parts_of(run, tx):
                tap.take(part)
        wait_for("the rest", lambda: archive.earliest({"tx": 9}) == {"tx": 3})
        assert log_of(archive_of(run).open({"tx": 0}))[0] == expected(run, 0, 3)

    def write(self, run, opened, *transactions):
        archive, tap = opened
        for tx in transactions:
            for part in self.parts_of(run, tx):
                tap.take(part)
            wait_for("it", lambda tx=tx: archive.earliest({"tx": 9}) == {"tx": tx})

    def test_a_reader_follows_where_older_entries_are_deleted(self, run, opened, tmp_path):
        folder = ArchiveFolder(str(tmp_path), run.name)
        self.write(run, opened, 1)
        (first,) = (name for name in folder.names() if name.kind == "segment")
        readers = [archive_of(run).open({"tx": 0}) for _ in range(2)]
        for reader in readers:
            assert log_of(reader)[0] == expected(run, 0, 1)
        self.write(run, opened, 2, 3)
        folder.delete(first.path)
        assert following(readers[0]) == expected(run, 1, 3)

        folder.delete(replace(first, number=first.number + 1).path)
        with pytest.raises(PositionLostError, match=r"has a hole behind \{'tx': 1\}: an entry"):
            following(readers[1])

    def test_a_reader_takes_nothing_twice_that_has_become_void(self, run, opened, tmp_path):
        folder = ArchiveFolder(str(tmp_path), run.name)
        self.write(run, opened, 1, 2)
        reader = archive_of(run).open({"tx": 0})
        assert log_of(reader)[0] == expected(run, 0, 2)
        self.write(run, opened, 3)
        first, second, third = (n for n in valid_names(folder.names()) if n.kind == "segment")
        # A newer lane had listed the folder before the second entry was there.
        newer = replace(first, epoch=first.epoch + 1)
        opening = folder.read_entry(first).model_copy(update={"start": {"tx": 1}, "parts": ()})
        link = (first.epoch, first.number)
        folder.write_entry(replace(newer, number=0, kind="opened", after=link), opening)
        for number, name in enumerate((second, third), 1):
            folder.write_entry(replace(newer, number=number), folder.read_entry(name))

        assert following(reader) == expected(run, 2, 3)

    def test_what_is_old_is_deleted_but_for_the_last_entry(self, run, opened, tmp_path):
        folder = ArchiveFolder(str(tmp_path), run.name)
        self.write(run, opened, 1, 2)
        day = "day=1970-01-01/table=x"
        folder.write(f"{day}/0000000001-0000000007-0.parquet", b"left over")
        folder.write(f"{day}/.0000000001-0000000007-1.parquet.tmp", b"left ov")
        (tmp_path / run.name / "cleaned.json").unlink()
        names = valid_names(folder.names())

        delete_old_daily(folder, 30, replace(names[-1], number=99))
        assert valid_names(folder.names()) == names[-1:]
        assert set(folder.data_files().values()) == {(names[-1].epoch, names[-1].number)}
        assert not (tmp_path / run.name / day).exists()
        kept = archive_of(run)
        assert kept.spans()[0].start == {"tx": 1}
        assert log_of(kept.open({"tx": 1}))[0] == expected(run, 1, 2)
        with pytest.raises(PositionLostError, match="does not have"):
            kept.open({"tx": 0})
