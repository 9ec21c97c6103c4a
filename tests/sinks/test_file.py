import errno
import json
import os
import sqlite3
import struct
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from airflow_provider_deltaforge.errors import AccessError, FatalError, RetryableError
from airflow_provider_deltaforge.sinks import file
from airflow_provider_deltaforge.sinks.file import FileSink, FileWriter
from airflow_provider_deltaforge.storage.sqlite import SqliteStore
from airflow_provider_deltaforge.testing.sinks import SinkContract, messages, value


class TestFileSink(SinkContract):
    @pytest.fixture
    def sink(self, tmp_path):
        return FileSink(path=str(tmp_path / "out" / "${source.table}.jsonl"))

    @pytest.fixture
    def place(self, tmp_path):
        return str(tmp_path / "out" / "orders.jsonl")

    @pytest.fixture
    def stored(self, tmp_path):
        return lambda: (tmp_path / "out" / "orders.jsonl").read_bytes().split(b"\n")[:-1]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "orders.jsonl"


@pytest.fixture
def writer(path):
    writer = FileSink(path=str(path)).open("p")
    yield writer
    writer.close()


def test_each_path_gets_its_own_messages(tmp_path):
    writer = FileSink(path=f"{tmp_path}/${{source.table}}").open("p")
    names = ["a", "b", "a"]

    writer.write(messages([(f"{tmp_path}/{name}", None, value(n)) for n, name in enumerate(names)]))

    assert (tmp_path / "a").read_bytes() == value(0) + b"\n" + value(2) + b"\n"
    assert (tmp_path / "b").read_bytes() == value(1) + b"\n"
    writer.close()


def tear(path, text, *, began):
    """Leave a file as a crash in the middle of a write does."""
    size = path.stat().st_size
    with path.open("ab") as lines:
        lines.write(text)
    mark = path.with_name(f".{path.name}.deltaforge")
    with mark.open("r+b") as kept:
        kept.seek(120)
        kept.write(struct.pack("<QQ", size if began is None else began, size + len(text) + 100))


@pytest.mark.parametrize("torn", [b'{"n":', b"x" * 70_000, b"\x00" * 10])
def test_a_last_line_that_we_tore_is_cut_on_open(path, writer, torn):
    writer.write(messages([(str(path), None, value(1))]))
    writer.close()
    tear(path, torn, began=None)

    writer.write(messages([(str(path), None, value(2))]))

    assert path.read_bytes() == value(1) + b"\n" + value(2) + b"\n"


def test_a_last_line_that_another_thread_tore_is_cut_as_well(path, writer):
    writer.write(messages([(str(path), None, value(1))]))
    tear(path, b'{"n":', began=None)

    writer.write(messages([(str(path), None, value(2))]))

    assert path.read_bytes() == value(1) + b"\n" + value(2) + b"\n"


@pytest.mark.parametrize("held", [b"half a note", b'{"n":1}\nhalf a note'])
def test_half_a_line_of_somebody_else_is_neither_cut_nor_continued(path, writer, held):
    path.write_bytes(held)

    with pytest.raises(FatalError, match="did not write: end the line"):
        writer.write(messages([(str(path), None, value(2))]))

    assert path.read_bytes() == held
    path.write_bytes(held + b"\n")
    writer.write(messages([(str(path), None, value(2))]))
    assert path.read_bytes() == held + b"\n" + value(2) + b"\n"


def test_half_a_line_that_somebody_added_to_ours_stays(path, writer):
    writer.write(messages([(str(path), None, value(1))]))
    with path.open("ab") as other:
        other.write(b"half a note")

    with pytest.raises(FatalError, match="half a line, from byte 8 on"):
        writer.write(messages([(str(path), None, value(2))]))

    assert path.read_bytes() == value(1) + b"\nhalf a note"


def test_a_failed_write_leaves_no_line_behind(path, writer, monkeypatch):
    writer.write(messages([(str(path), None, value(1))]))
    real = os.pwrite

    def half(descriptor, data, offset):
        if isinstance(data, bytes):
            return real(descriptor, data, offset)  # Not the lines.
        if len(data) < 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data[: len(data) - 4], offset)

    monkeypatch.setattr(file.os, "pwrite", half)
    with pytest.raises(RetryableError, match="No space left"):
        writer.write(messages([(str(path), None, value(n)) for n in (2, 3)]))
    assert path.read_bytes() == value(1) + b"\n"

    monkeypatch.undo()
    writer.write(messages([(str(path), None, value(n)) for n in (2, 3)]))
    assert path.read_bytes() == b"".join(value(n) + b"\n" for n in (1, 2, 3))


def test_a_write_returns_after_the_disk_has_it(path, writer, monkeypatch):
    synced = []
    real = os.fsync
    monkeypatch.setattr(
        file.os, "fsync", lambda fd: (synced.append(os.fstat(fd).st_size), real(fd))
    )

    writer.write(messages([(str(path), None, value(1))]))

    assert path.stat().st_size in synced


SCRIPT = """
import sys
from airflow_provider_deltaforge.sinks.file import FileSink
from airflow_provider_deltaforge.testing.sinks import messages
path, number, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
writer = FileSink(path=path).open("p")
for each in range(count):
    text = b'{"w":%d,"n":%d}' % (number, each)
    writer.write(messages([(path, None, text + b" " * 3000)] * 2))
print("written", flush=True)
sys.stdin.read()
"""


def process(path, number=0, count=1, **environment):
    words = [sys.executable, "-c", SCRIPT, str(path), str(number), str(count)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(words, env={**os.environ, **environment}, **pipes)


def test_two_drivers_do_not_write_one_file(path, writer):
    writer.write(messages([(str(path), None, value(1))]))
    told = process(path).communicate()
    assert b"RetryableError" in told[1]
    assert b"another driver writes this file" in told[1]
    writer.close()
    assert process(path).communicate()[0] == b"written\n"

    assert path.read_bytes().count(b"\n") == 3


def test_a_file_that_blocks_lets_no_other_grow(path, writer):
    second = path.with_name("second.jsonl")
    batch = messages([(str(path), None, value(1)), (str(second), None, value(2))])
    other = process(second)
    assert other.stdout.readline() == b"written\n"
    for _ in range(3):
        with pytest.raises(RetryableError, match="another driver writes this file"):
            writer.write(batch)
    assert path.read_bytes() == value(1) + b"\n"
    other.communicate()
    assert list(writer.write(batch)) == []
    assert path.read_bytes() == value(1) + b"\n"
    assert second.read_bytes().splitlines()[-1] == value(2)
    writer.write(batch)  # Another delivery of the same messages is written.
    assert path.read_bytes().count(b"\n") == 2


def test_writers_of_one_job_share_a_file_line_by_line(path):
    hands = [process(path, number, 20, DELTAFORGE_JOB="df-p-g1") for number in range(3)]
    assert [hand.stdout.readline() for hand in hands] == [b"written\n"] * 3  # All still open.
    for hand in hands:
        hand.communicate()

    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    for number in range(3):
        assert [line["n"] for line in lines if line["w"] == number] == sorted([*range(20)] * 2)


def test_threads_of_one_process_share_a_file(path):
    def write(number):
        writer = FileSink(path=str(path)).open("p")
        for each in range(20):
            writer.write(messages([(str(path), None, b"[%d,%d]" % (number, each))]))
        writer.close()

    with ThreadPoolExecutor(6) as hands:
        list(hands.map(write, range(6)))

    lines = [tuple(json.loads(line)) for line in path.read_bytes().splitlines()]
    assert sorted(lines) == [(number, each) for number in range(6) for each in range(20)]


@pytest.mark.parametrize(
    "name",
    [
        *("../escape", "sub/../../escape", "/etc/escape", "nul\0", "."),
        *("..", "sub/../good", "./good", "sub/..", ".good.deltaforge"),
    ],
)
def test_a_name_from_the_data_cannot_leave_the_directory(tmp_path, name):
    root = tmp_path / "out"
    writer = FileSink(path=f"{root}/${{after.name}}").open("p")

    rejections = writer.write(
        messages([(f"{root}/{name}", None, b"{}"), (f"{root}/good", None, value(1))])
    )

    assert [(each.event_row, each.kind) for each in rejections] == [(0, "routing")]
    assert (root / "good").read_bytes() == value(1) + b"\n"
    assert [each.name for each in tmp_path.iterdir()] == ["out"]
    writer.close()


def test_no_link_from_the_data_is_followed(tmp_path):
    root, secret = tmp_path / "out", tmp_path / "secret"
    (secret / "in").mkdir(parents=True)
    (secret / "file").write_bytes(b"kept\n")
    root.mkdir()
    (root / "file").symlink_to(secret / "file")
    (root / "dangling").symlink_to(secret / "new")
    (root / "directory").symlink_to(secret)
    os.mkfifo(root / "pipe")
    writer = FileSink(path=f"{root}/${{source.table}}").open("p")
    names = ["file", "dangling", "directory/file", "directory/in/x", "pipe", "good"]

    rejections = writer.write(
        messages([(f"{root}/{name}", None, value(n)) for n, name in enumerate(names)])
    )

    assert sorted(each.event_row for each in rejections) == [0, 1, 2, 3, 4]
    assert (root / "good").read_bytes() == value(5) + b"\n"
    assert sorted(p.name for p in secret.rglob("*")) == ["file", "in"]
    assert (secret / "file").read_bytes() == b"kept\n"
    writer.close()


def test_a_link_that_the_operator_names_is_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "there").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "lines").symlink_to(tmp_path / "elsewhere" / "lines")
    for template in (f"{tmp_path}/lines", f"{tmp_path}/there/${{source.table}}"):
        writer = FileSink(path=template).open("p")
        name = template.replace("${source.table}", "t")
        assert not writer.write(messages([(name, None, value(1))]))
        writer.close()

    assert {p.name for p in (tmp_path / "elsewhere").glob("[!.]*")} == {"lines", "t"}


def test_the_state_store_and_other_databases_are_never_written(tmp_path, monkeypatch):
    state = SqliteStore(tmp_path / "state.db", create=True)
    state.put("a", "k", b"1")
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE t (a)")
    other.close()
    os.link(tmp_path / "state.db", tmp_path / "hard")
    monkeypatch.chdir(tmp_path)
    names = ["state.db", "state.db-wal", "state.db-shm", "state.db-journal", "hard", "other.db"]
    before = {name: Path(name).read_bytes() for name in names if Path(name).exists()}
    writer = FileSink(path="${source.table}").open("p")

    rejections = writer.write(
        messages([(name, None, value(n)) for n, name in enumerate([*names, "orders"])])
    )

    assert sorted(each.event_row for each in rejections) == list(range(len(names)))
    assert {each.kind for each in rejections} == {"routing"}
    assert {name: Path(name).read_bytes() for name in before} == before
    assert not Path("state.db-journal").exists()
    assert Path("orders").read_bytes() == value(6) + b"\n"
    assert state.get("a", "k") == b"1"
    fixed = FileSink(path=str(tmp_path / "state.db")).open("p")
    assert fixed.write(messages([(str(tmp_path / "state.db"), None, value(1))]))
    writer.close()
    state.close()


def test_files_of_the_drivers_own_job_are_never_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DELTAFORGE_JOB", "df-p-g1")
    names = ["lock", "driver.log", "exit", "handle.json", "orders"]
    writer = FileSink(path="${source.table}").open("p")

    rejections = writer.write(messages([(name, None, value(1)) for name in names]))

    assert sorted(each.event_row for each in rejections) == [0, 1, 2, 3]
    assert [p.name for p in tmp_path.glob("[!.]*")] == ["orders"]
    writer.close()


def test_a_name_too_long_is_rejected_alone(tmp_path):
    writer = FileSink(path=f"{tmp_path}/${{after.name}}").open("p")

    rejections = writer.write(
        messages([(f"{tmp_path}/{'x' * 300}", None, b"{}"), (f"{tmp_path}/a", None, value(1))])
    )

    assert [each.event_row for each in rejections] == [0]
    assert (tmp_path / "a").read_bytes() == value(1) + b"\n"
    writer.close()


def test_a_place_we_may_not_write_is_an_access_error(writer, path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(file.os, "open", refuse)

    with pytest.raises(AccessError, match="Permission denied"):
        writer.write(messages([(str(path), None, value(1))]))


def test_line_breaks_between_tokens_become_spaces(path, writer):
    writer.write(messages([(str(path), None, b'{\r\n "a":\n1}'), (str(path), None, None)]))

    assert path.read_bytes() == b'{   "a": 1}\nnull\n'


def test_more_paths_than_open_files(tmp_path):
    writer = FileWriter("file", f"{tmp_path}/${{source.table}}", open_files_max=3)

    for _ in range(2):
        writer.write(messages([(f"{tmp_path}/{n}", None, value(n)) for n in range(10)]))
    writer.close()

    assert (tmp_path / "7").read_bytes() == (value(7) + b"\n") * 2


def test_killed_in_the_middle_of_writing_leaves_whole_lines_after_reopening(tmp_path, path):
    script = f"""
        from airflow_provider_deltaforge.sinks.file import FileSink
        from airflow_provider_deltaforge.testing.sinks import messages
        writer = FileSink(path={str(path)!r}).open("p")
        n = 0
        while True:
            rows = [({str(path)!r}, None, b'{{"n":%d}}' % (n + i)) for i in range(500)]
            writer.write(messages(rows))
            n += 500
            print(n, flush=True)
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    )
    durable = 0
    for line in child.stdout:
        durable = int(line)
        if durable >= 5000:
            break
    child.kill()
    durable = max([durable, *(int(line) for line in child.stdout if line.strip())])
    child.wait()

    writer = FileSink(path=str(path)).open("p")
    writer.write(messages([(str(path), None, value(-1))]))
    writer.close()

    lines = path.read_bytes().split(b"\n")
    assert lines[-1] == b""
    assert lines[-2] == value(-1)
    count = len(lines) - 2
    assert count >= durable
    assert lines[:count] == [value(n) for n in range(count)]
