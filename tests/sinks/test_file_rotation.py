"""Files that are renamed, deleted or replaced while the sink has them open."""

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_provider_deltaforge.errors import FatalError, RetryableError
from airflow_provider_deltaforge.sinks import file
from airflow_provider_deltaforge.sinks.file import FileSink
from airflow_provider_deltaforge.testing.sinks import messages, value


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out" / "orders.jsonl"


@pytest.fixture
def writer(path):
    writer = FileSink(path=str(path)).open("p")
    yield writer
    writer.close()


def write(writer, path, *numbers):
    return writer.write(messages([(str(path), None, value(number)) for number in numbers]))


def lines(*numbers):
    return b"".join(value(number) + b"\n" for number in numbers)


def mark_of(path):
    return path.with_name(f".{path.name}.deltaforge")


def test_behind_a_rename_a_new_file_is_made(path, writer):
    rotated = path.with_name("orders.jsonl.1")
    write(writer, path, 1, 2)
    path.rename(rotated)
    assert not write(writer, path, 3)
    assert not write(writer, path, 4)
    assert rotated.read_bytes() == lines(1, 2)
    assert path.read_bytes() == lines(3, 4)
    assert sorted(p.name for p in path.parent.iterdir()) == sorted(
        [mark_of(path).name, path.name, rotated.name]
    )


@pytest.mark.parametrize(
    "lose",
    [
        pytest.param(lambda path: path.unlink(), id="file"),
        pytest.param(lambda path: shutil.rmtree(path.parent), id="directory"),
        pytest.param(lambda path: path.parent.rename(path.parent.parent / "old"), id="moved"),
    ],
)
def test_behind_a_loss_a_new_file_is_made(path, writer, lose):
    write(writer, path, 1)
    lose(path)
    write(writer, path, 2)
    assert path.read_bytes() == lines(2)


def test_a_file_that_took_its_place_is_written_on(path, writer):
    write(writer, path, 1)
    path.rename(path.with_name("orders.jsonl.1"))
    path.write_bytes(b"a heading\n")
    write(writer, path, 2)
    assert path.read_bytes() == b"a heading\n" + lines(2)


def test_half_a_line_in_a_file_that_took_its_place_is_somebody_elses(path, writer):
    write(writer, path, 1)
    write(writer, path, 2)
    path.unlink()
    path.write_bytes(b"half a note")
    with pytest.raises(FatalError, match="did not write"):
        write(writer, path, 3)
    assert path.read_bytes() == b"half a note"


def test_what_took_its_place_is_judged_as_any_name_is(tmp_path):
    root, secret = tmp_path / "out", tmp_path / "secret"
    secret.write_bytes(b"kept\n")
    writer = FileSink(path=f"{root}/${{source.table}}").open("p")
    write(writer, root / "a", 1)
    write(writer, root / "b", 1)
    (root / "a").unlink()
    (root / "a").symlink_to(secret)
    (root / "b").unlink()
    (root / "b").mkdir()
    for name in ("a", "b", "a"):
        [refused] = write(writer, root / name, 2)
        assert refused.kind == "routing"
    assert secret.read_bytes() == b"kept\n"
    (root / "a").unlink()
    assert not write(writer, root / "a", 3)
    assert (root / "a").read_bytes() == lines(3)
    writer.close()


def test_a_link_of_the_operator_that_leads_elsewhere_is_followed_there(tmp_path):
    first, second, link = (tmp_path / name for name in ("first", "second", "link"))
    link.symlink_to(first)
    writer = FileSink(path=str(link)).open("p")
    write(writer, link, 1)
    link.unlink()
    link.symlink_to(second)
    write(writer, link, 2)
    assert (first.read_bytes(), second.read_bytes()) == (lines(1), lines(2))
    writer.close()


SCRIPT = """
import sys
from airflow_provider_deltaforge.sinks.file import FileSink
from airflow_provider_deltaforge.testing.sinks import messages
path, number, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
writer = FileSink(path=path).open("p")
for n in range(count):
    sys.stdin.readline()
    writer.write(messages([(path, None, b'{"w":%d,"n":%d}' % (number, n))]))
    print(n, flush=True)
"""


def process(path, number, count, **environment):
    """Start a process that writes a line for each of its input, and goes on once that ends."""
    words = [sys.executable, "-c", SCRIPT, str(path), str(number), str(count)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(words, env={**os.environ, **environment}, **pipes)


@pytest.mark.parametrize("lost", ["file", "mark", "both"])
def test_another_driver_gets_in_neither_before_nor_behind_it(path, writer, lost):
    write(writer, path, 1)
    if lost != "mark":
        path.unlink()
    if lost != "file":
        mark_of(path).unlink()
    write(writer, path, 2)
    assert b"another driver writes this file" in process(path, 0, 1).communicate()[1]
    assert path.read_bytes() == (lines(1, 2) if lost == "mark" else lines(2))


def test_a_driver_that_took_the_file_over_keeps_it(path, writer):
    write(writer, path, 1)
    shutil.rmtree(path.parent)
    other = FileSink(path=str(path)).open("p")
    write(other, path, 2)
    mark = mark_of(path)
    with mark.open("r+b") as owner:
        owner.write(b"another driver".ljust(120, b"\0"))
    with pytest.raises(RetryableError, match="another driver writes this file"):
        write(writer, path, 3)
    assert path.read_bytes() == lines(2)
    other.close()


def test_a_batch_that_was_under_way_when_its_file_was_packed_comes_again(path, writer, monkeypatch):
    write(writer, path, 1)
    packed, real = [], os.fsync

    def sync(descriptor):
        if not packed:
            rotated = path.with_name("orders.jsonl.1")
            path.rename(rotated)
            packed.append(lines(1))  # As it was when the packer read it.
            rotated.unlink()
        real(descriptor)

    monkeypatch.setattr(file.os, "fsync", sync)
    write(writer, path, 2)
    assert b"".join(packed) + path.read_bytes() == lines(1, 2)


def test_a_file_that_never_keeps_its_name_is_an_error(path, writer, monkeypatch):
    write(writer, path, 1)
    real = os.fsync

    def sync(descriptor):
        path.unlink(missing_ok=True)
        real(descriptor)

    monkeypatch.setattr(file.os, "fsync", sync)
    with pytest.raises(RetryableError, match="renamed or deleted whenever"):
        write(writer, path, 2)
    monkeypatch.undo()
    write(writer, path, 2)
    assert path.read_bytes() == lines(2)


def rotate(path, number):
    """Rename a file, if it is there."""
    try:
        path.rename(path.with_name(f"{path.name}.{number}"))
    except FileNotFoundError:
        return


def written(path):
    return [
        json.loads(line)
        for found in path.parent.glob("orders.jsonl*")
        for line in found.read_bytes().splitlines()
    ]


def test_threads_of_one_driver_lose_nothing_while_their_file_is_rotated(path):
    def write_all(number):
        writer = FileSink(path=str(path)).open("p")
        for n in range(50):
            writer.write(messages([(str(path), None, b"[%d,%d]" % (number, n))]))
            if number == 0 and n % 5 == 0:
                rotate(path, n)
        writer.close()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write_all, range(4)))
    assert {tuple(line) for line in written(path)} == {(w, n) for w in range(4) for n in range(50)}


def test_processes_of_one_driver_lose_nothing_while_their_file_is_rotated(path):
    writers = [process(path, number, 60, DELTAFORGE_JOB="df-p-g1") for number in range(2)]
    writers[1].stdin.close()
    writers[1].stdin = None
    for number in range(40):
        writers[0].stdin.write(b"\n")
        writers[0].stdin.flush()
        assert writers[0].stdout.readline()
        if number % 5 == 0:
            rotate(path, number)
    for running in writers:
        assert running.communicate()[1] == b""
    found = {(line["w"], line["n"]) for line in written(path)}
    assert found == {(w, n) for w in range(2) for n in range(60)}
    assert len(list(path.parent.glob("orders.jsonl.*"))) == 8
