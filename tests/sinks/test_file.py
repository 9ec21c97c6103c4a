import errno
import os
import subprocess
import sys
import textwrap

import pytest

from airflow_provider_deltaforge.errors import AccessError, RetryableError
from airflow_provider_deltaforge.sinks import file
from airflow_provider_deltaforge.sinks.file import FileSink
from tests.sinks.contract import SinkContract, messages, value


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


@pytest.mark.parametrize("torn", [b'{"n":', b"x" * 70_000, b"\x00" * 10])
def test_a_torn_last_line_is_cut_on_open(path, writer, torn):
    path.write_bytes(value(1) + b"\n" + torn)

    writer.write(messages([(str(path), None, value(2))]))

    assert path.read_bytes() == value(1) + b"\n" + value(2) + b"\n"


def test_a_file_that_is_one_torn_line_becomes_empty_first(path, writer):
    path.write_bytes(b'{"n":')

    writer.write(messages([(str(path), None, value(2))]))

    assert path.read_bytes() == value(2) + b"\n"


def test_a_failed_write_leaves_no_line_behind(path, writer, monkeypatch):
    writer.write(messages([(str(path), None, value(1))]))
    real = os.pwrite

    def half(descriptor, data, offset):
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


def test_two_processes_do_not_write_one_file(path, writer):
    writer.write(messages([(str(path), None, value(1))]))
    other = FileSink(path=str(path)).open("p")

    with pytest.raises(RetryableError, match="another process"):
        other.write(messages([(str(path), None, value(2))]))
    writer.close()
    other.write(messages([(str(path), None, value(2))]))

    assert path.read_bytes() == value(1) + b"\n" + value(2) + b"\n"
    other.close()


@pytest.mark.parametrize("name", ["../escape", "sub/../../escape", "/etc/escape", "nul\0", "."])
def test_a_name_from_the_data_cannot_leave_the_directory(tmp_path, name):
    root = tmp_path / "out"
    writer = FileSink(path=f"{root}/${{after.name}}").open("p")

    rejections = writer.write(
        messages([(str(root / name), None, b"{}"), (f"{root}/good", None, value(1))])
    )

    assert [(each.event_row, each.kind) for each in rejections] == [(0, "routing")]
    assert (root / "good").read_bytes() == value(1) + b"\n"
    assert [each.name for each in tmp_path.iterdir()] == ["out"]
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
    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(file.os, "open", refuse)

    with pytest.raises(AccessError, match="Permission denied"):
        writer.write(messages([(str(path), None, value(1))]))


def test_line_breaks_between_tokens_become_spaces(path, writer):
    writer.write(messages([(str(path), None, b'{\r\n "a":\n1}'), (str(path), None, None)]))

    assert path.read_bytes() == b'{   "a": 1}\nnull\n'


def test_more_paths_than_open_files(tmp_path, monkeypatch):
    monkeypatch.setattr(file, "_OPEN_FILES_MAX", 3)
    writer = FileSink(path=f"{tmp_path}/${{source.table}}").open("p")

    for _ in range(2):
        writer.write(messages([(f"{tmp_path}/{n}", None, value(n)) for n in range(10)]))
    writer.close()

    assert (tmp_path / "7").read_bytes() == (value(7) + b"\n") * 2


def test_killed_in_the_middle_of_writing_leaves_whole_lines_after_reopening(tmp_path, path):
    script = f"""
        from airflow_provider_deltaforge.sinks.file import FileSink
        from tests.sinks.contract import messages
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
