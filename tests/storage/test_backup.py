"""A state store as a file, and back."""

import gzip
import json
import threading

import pytest

from airflow_provider_deltaforge.errors import FatalError, FencedError, RetryableError, SpecError
from airflow_provider_deltaforge.storage import layout, names
from airflow_provider_deltaforge.storage.backup import (
    READABLE_FORMATS,
    read_backup,
    write_backup,
)
from airflow_provider_deltaforge.storage.contract import Append, Push, Put
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.memory import MemoryStore
from airflow_provider_deltaforge.storage.records.control import Control
from tests.waiting import wait_until

DOCUMENT = "spec: {}\n"


def opened(dsn):
    return StoreLocation.from_dsn(dsn).create()


@pytest.fixture
def other_dsn(request, durable_dsn, tmp_path):
    """A place of the other backend."""
    if durable_dsn.startswith("sqlite"):
        return request.getfixturevalue("postgres_dsn")
    return f"sqlite:///{tmp_path}/other.db"


def filled(dsn):
    store = opened(dsn)
    control = Control(store, "orders")
    control.apply(DOCUMENT, "hash", "shop")
    control.update(lambda old: old.model_copy(update={"handle": {"pid": 1}, "generation": 3}))
    control.take_epoch("a")
    store.transact(
        [
            Put("checkpoints", "orders/shop::sink::k", b'{"v": 1}'),
            Put("a", "ü\U0010ffff", bytes(range(256)) * 100),
            Put("a", "expires", b"1", 3600),
            Append("schemas", "acme/shop", b"one"),
            Append("schemas", "acme/shop", b""),
            Push("journal", "orders:dlq", b"\0"),
            Push("journal", "orders:dlq", b"two"),
        ]
    )
    store.ack("journal", "orders:dlq", 1)
    return store


def shown(store):
    """Return what readers of a store see, without the versions of slots."""
    return {
        "kv": {
            name: store.items(name)
            for name in ("checkpoints", "a", names.DOCUMENTS, names.PROGRESS)
        },
        "log": store.read("schemas"),
        "queue": store.peek("journal", "orders:dlq"),
        "control": Control(store, "orders").read(),
        "claim": store.slot(names.CLAIMS, "shop").state,
    }


def test_a_restored_store_is_as_it_was(durable_dsn, other_dsn, tmp_path):
    """Into a store of the other kind, and back into one of its own."""
    first, second = filled(durable_dsn), opened(other_dsn)
    written = write_backup(first, tmp_path / "b")
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o600
    assert written == read_backup(second, tmp_path / "b")
    assert written.pipelines == ["orders"]

    expected = shown(first)
    # A driver that was started for the other store is nobody's to adopt.
    expected["control"] = expected["control"].model_copy(update={"handle": None})
    assert shown(second) == expected
    second.close()
    again = opened(other_dsn)
    assert again.identity == first.identity
    assert again.append("schemas", "k", b"") > first.append("schemas", "k", b"")
    assert again.push("q", "k", b"") > first.push("q", "k", b"")

    write_backup(again, tmp_path / "c")
    first.drop_oldest("journal", "orders:dlq")
    first.delete("a", "expires")
    with pytest.raises(SpecError, match=f"is not empty.*--replace {first.name}"):
        read_backup(first, tmp_path / "c")
    read_backup(first, tmp_path / "c", replace=True)
    assert shown(first) == shown(again)
    first.close()
    again.close()


def test_no_driver_from_before_writes_into_a_restored_store(durable_dsn, tmp_path):
    """Neither the one of the backup, nor one of a later epoch, nor after further starts."""
    store = filled(durable_dsn)
    control = Control(store, "orders")
    fences = [control.take_epoch("of the backup")]
    write_backup(store, tmp_path / "b")
    fences += [control.take_epoch(f"later {number}") for number in range(3)]
    gone = Control(store, "gone")
    gone.apply(DOCUMENT, "hash", "other")
    fences.append(gone.take_epoch("of a pipeline that the backup lacks"))
    stale = store.slot(names.CONTROL, "orders").version

    for _ in range(2):
        read_backup(store, tmp_path / "b", replace=True)
        fences += [control.take_epoch(f"after {number}") for number in range(5)]
        for fence in fences[:-1]:
            with pytest.raises(FencedError):
                store.transact([Put("checkpoints", "k", b"late")], fence)
        assert store.swap(names.CONTROL, "orders", stale, b"{}") is None
    store.transact([Put("checkpoints", "k", b"newest")], fences[-1])
    assert gone.read() is None
    with pytest.raises(FencedError):
        control.renew_epoch("later 2")
    assert len({fence.version for fence in fences if fence.key == "orders"}) == len(fences) - 1
    store.close()


def test_a_backup_shows_one_moment_while_others_write(durable_dsn, tmp_path):
    """Every transaction raises a pair of values: no backup has a half of one."""
    store, over = opened(durable_dsn), threading.Event()
    for number in range(300):
        store.put("filling", f"{number}", b"x" * 100)

    def write():
        writer, number = opened(durable_dsn), 0
        while not over.is_set():
            number += 1
            text = b"%d" % number
            writer.transact([Put("pair", "a", text), Push("pair", "k", text)])
        writer.close()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for number in range(4):
            before = store.get("pair", "a")
            wait_until(lambda before=before: store.get("pair", "a") != before)
            write_backup(store, tmp_path / f"{number}")
    finally:
        over.set()
        thread.join()
    values = []
    for number in range(4):
        text = gzip.decompress((tmp_path / f"{number}").read_bytes())
        lines = [json.loads(line) for line in text.splitlines()]
        [value] = [row[3]["text"] for row in lines[1:-1] if row[:2] == ["df_kv", "pair"]] or ["0"]
        queue = [row[4]["text"] for row in lines[1:-1] if row[0] == "df_queue"]
        assert queue == [str(each + 1) for each in range(int(value))]
        assert lines[0]["rows"]["df_queue"] == len(queue)
        values.append(int(value))
    assert values == sorted(values)
    assert values[0] < values[-1]
    store.close()


def damaged(path):
    whole = path.read_bytes()
    lines = gzip.decompress(whole).splitlines(keepends=True)
    yield whole[: len(whole) // 2]
    yield gzip.compress(b"".join(lines[:-1]))
    yield gzip.compress(b"".join([*lines[:2], *lines[3:]]))
    yield gzip.compress(b"".join(lines).replace(b'"text":"one"', b'"text":"two"'))
    yield gzip.compress(b"".join([*lines, lines[1]]))
    yield gzip.compress(b"".join([lines[0], b'["df_kv", "a"]\n', *lines[1:]]))
    yield whole + b"\0garbage"


def test_a_damaged_backup_changes_nothing(sqlite_dsn, tmp_path):
    store = filled(sqlite_dsn)
    write_backup(store, tmp_path / "b")
    before, epoch = shown(store), Control(store, "orders").epoch()
    for content in damaged(tmp_path / "b"):
        (tmp_path / "b").write_bytes(content)
        with pytest.raises(FatalError, match=r"damaged or was cut off.*nothing was restored"):
            read_backup(store, tmp_path / "b", replace=True)
        assert (shown(store), Control(store, "orders").epoch()) == (before, epoch)
    store.close()


@pytest.mark.parametrize("content", [b"", b"\x1f\x8b", b"SQLite format 3\0", b"{}", b"null\n"])
def test_what_is_no_backup_is_refused(content, sqlite_dsn, tmp_path):
    for text in (content, gzip.compress(content)):
        (tmp_path / "b").write_bytes(text)
        with pytest.raises(SpecError, match="is no backup of a state store"):
            read_backup(opened(sqlite_dsn), tmp_path / "b")


def test_a_backup_of_a_later_release_is_refused(sqlite_dsn, tmp_path):
    store = filled(sqlite_dsn)
    write_backup(store, tmp_path / "b")
    text = gzip.decompress((tmp_path / "b").read_bytes())
    for former, later in ((b'"v":1', b'"v":2'), (b'"format":2', b'"format":99')):
        (tmp_path / "b").write_bytes(gzip.compress(text.replace(former, later, 1)))
        with pytest.raises(FatalError, match="upgrade airflow-provider-deltaforge here"):
            read_backup(store, tmp_path / "b", replace=True)
    store.close()


def test_this_releases_format_is_one_it_restores():
    """Whoever adds a step to the layout says here what becomes of older rows."""
    assert max(READABLE_FORMATS) == layout.FORMAT


def test_tokens_and_writers_outlive_a_replacement(sqlite_dsn, tmp_path):
    """A token may have been revoked since; a writer may still hold its lease."""
    store = opened(sqlite_dsn)
    store.put(names.TOKENS, "revoked", b"1")
    store.put(names.WRITERS, "former", b"1")
    assert write_backup(store, tmp_path / "b").tokens == 1
    store.delete(names.TOKENS, "revoked")
    store.put(names.TOKENS, "new", b"1")
    store.put(names.WRITERS, "newer", b"1")
    read_backup(store, tmp_path / "b", replace=True)
    assert store.items(names.TOKENS) == [("new", b"1")]
    assert [key for key, _ in store.items(names.WRITERS)] == ["former", "newer"]
    store.close()


def test_a_second_store_has_an_identity_of_its_own(sqlite_dsn, tmp_path):
    store = filled(sqlite_dsn)
    write_backup(store, tmp_path / "b")
    second = opened(f"sqlite:///{tmp_path}/second.db")
    read_backup(second, tmp_path / "b", new_identity=True)
    location = StoreLocation.from_dsn(f"sqlite:///{tmp_path}/second.db")
    assert location.open().identity != store.identity
    with pytest.raises(RetryableError, match="another state store"):
        location.of(store).open()
    store.close()


def test_a_store_in_memory_has_no_backup(tmp_path):
    with pytest.raises(SpecError, match="SQLite or PostgreSQL"):
        write_backup(MemoryStore(), tmp_path / "b")
    assert list(tmp_path.iterdir()) == []
