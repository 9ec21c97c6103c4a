"""Bad input of any kind: a sentence with the mend and the right exit code, never a traceback."""

import random
import socket
import sqlite3
import time
from contextlib import suppress

import pytest
from typer.testing import CliRunner

from airflow_provider_deltaforge.cli.app import app
from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.control.launching import spark_submit
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.spec.load import check, load, read_document
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.control import Control, Progress
from tests.engine.in_process import DOCUMENT

TEXT = DOCUMENT.format(
    name="orders",
    transactions=5,
    rows=1,
    keys=30,
    source="",
    batch="",
    processors="{id: f, type: filter, ops: [create]}",
    journal="",
    policy="",
    snapshot="never",
    sinks="    - {type: kafka, config: {id: k, brokers: 'h:9092', topic: '${source.table}'}}\n"
    "    - {type: redis, config: {id: r, uri: 'redis://h:6379/0', stream: s, max_len: 5}}\n",
)
ODD = [
    *("", "null", "-1", "0", "1e400", "99999999999999999999999999", ".nan", "[]", "{}", "'\\0'"),
    *("!!python/object:os.system x", "&a [*a]", "${", "${}", "${X.Y}", "'${X:-}'", "\x07", "0x1F"),
    *("2026-01-01", "yes", "~", "'h:99999'", "redis://h:99999999/x", "'%'", '"\\ud800"', "? x"),
]


def mutated(number):
    """Return a document with one to three faults."""
    chance = random.Random(number)
    text = TEXT
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(text))
        fault = chance.choice(ODD)
        values = [i for i, mark in enumerate(text) if mark == ":" and text[i + 1 : i + 2] == " "]
        match chance.randrange(4):
            case 0:
                text = text[:at] + fault + text[at:]
            case 1:
                text = text[:at] + text[at + chance.randint(1, 30) :]
            case 2 if values:
                begin = chance.choice(values) + 1
                end = next((i for i in range(begin, len(text)) if text[i] in ",}\n"), begin)
                text = f"{text[:begin]} {fault}{text[end:]}"
            case _:
                text = text[:at] + chr(chance.randrange(1, 0x2FFF)) + text[at:]
    return text


@pytest.mark.parametrize("seed", range(5))
def test_a_damaged_document_is_a_sentence_that_names_what_is_wrong(seed, tmp_path):
    store = StoreLocation.from_dsn(f"sqlite:///{tmp_path}/state.db").create()
    for number in range(seed * 40, seed * 40 + 40):
        text = mutated(number)
        for call in (check, lambda text: pipelines.apply(store, text), lambda text: load(text, {})):
            with suppress(SpecError):  # Of any other kind it would be a traceback.
                call(text)
    store.close()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(b"x: " + b"a" * (1 << 20), "larger than 1 MiB", id="large"),
        pytest.param("größe: 1".encode("latin-1"), "not UTF-8", id="latin"),
        pytest.param("x: 1".encode("utf-16"), "not UTF-8", id="utf-16"),
        pytest.param(b"\x00\x01\x02", "not YAML", id="binary"),
        pytest.param(b"", "empty", id="empty"),
        pytest.param(b"[" * 20_000, "nested too deeply", id="deep"),
    ],
)
@pytest.mark.parametrize("verb", ["validate", "run", "preflight"])
def test_a_file_that_is_no_document_is_refused(content, said, verb, tmp_path, run):
    path = tmp_path / "orders.yaml"
    path.write_bytes(content)
    store = () if verb != "run" else ("--store", f"sqlite:///{tmp_path}/state.db")
    code, words = run(verb, path, *store)
    assert code == 2
    assert said in words
    assert not (tmp_path / "state.db").exists()


def test_a_document_of_100_megabytes_is_refused_unread(tmp_path):
    path = tmp_path / "large.yaml"
    with path.open("wb") as file:
        file.truncate(100 << 20)
    began = time.process_time()
    with pytest.raises(SpecError, match="is this the right file"):
        read_document(path)
    assert time.process_time() - began < 0.5


def test_aliases_that_multiply_are_refused():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    with pytest.raises(SpecError, match="more than"):
        load("\n".join(lines))
    merged = ["m0: &m0 {k: v}"]
    merged += [f"m{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 10)}]}}" for n in range(1, 12)]
    began = time.process_time()
    with pytest.raises(SpecError):
        load("\n".join(merged))
    assert time.process_time() - began < 20


@pytest.mark.parametrize("master", ["yarn", "k8s://h", "local[0]", "spark://h", "mesos://h:1", ""])
def test_a_master_that_does_not_work_is_refused_before_anything_starts(master, tmp_path, run):
    path = tmp_path / "orders.yaml"
    path.write_text(TEXT)
    store = f"sqlite:///{tmp_path}/state.db"
    code, words = run("run", path, "--store", store, "--master", master)
    assert code == 2
    assert "spark://host:7077" in words
    assert ("does not launch drivers on" in words) is master.startswith(("yarn", "k8s", "mesos"))
    assert not (tmp_path / "state.db").exists()
    for works in ("local", "local[*]", "local[4]", "local[2,3]"):
        spark_submit.check_master(works, store)
    spark_submit.check_master("spark://a:7077,b:7077", "postgresql://h/d")
    with pytest.raises(SpecError, match="which every executor can reach"):
        spark_submit.check_master("spark://a:7077", store)


def test_damaged_rows_of_the_store_are_named(tmp_path, run, monkeypatch):
    monkeypatch.setenv("DELTAFORGE_JOBS", str(tmp_path / "jobs"))
    dsn, path = f"sqlite:///{tmp_path}/state.db", tmp_path / "orders.yaml"
    path.write_text(TEXT)
    store = StoreLocation.from_dsn(dsn).create()
    pipelines.apply(store, TEXT)
    control = Control(store, "orders")
    fence = control.take_epoch("driver")
    progress = Progress(
        status="running", since_ms=1, epoch=1, generation=0, heartbeat_at_ms=1, host="h", pid=1
    )
    store.transact([control.put_progress(progress)], fence)
    store.close()
    chance = random.Random(5)
    with sqlite3.connect(tmp_path / "state.db", isolation_level=None) as server:
        kept = [
            (table, column, rowid, value)
            for table, column in (("df_kv", "val"), ("df_slot", "state"))
            for rowid, value in server.execute(f"SELECT rowid, {column} FROM {table}").fetchall()
        ]
        assert len(kept) >= 4
        for table, column, rowid, value in kept:
            cut = chance.randrange(len(value)) if len(value) else 0
            for bad in (b"", b"\xff\xfe", b"null", b"[]", b'{"v":1}', value[:cut], 7, "text"):
                change = f"UPDATE {table} SET {column} = ? WHERE rowid = ?"
                server.execute(change, (bad, rowid))
                for words in (["status"], ["status", "orders", "--json"], ["pause", "orders"]):
                    code, _ = run(*words, "--store", dsn)
                    assert code in (0, 1, 2), (table, rowid, bad, words)
                server.execute(change, (value, rowid))
    server.close()


ADDRESSES = {
    "8080": "host:port",
    "127.0.0.1:": "host:port",
    "127.0.0.1:70000": "host:port",
    "127.0.0.1:²": "host:port",
    "127.0.0.1:-1": "host:port",
    ":8080": "host:port",
    "": "host:port",
    "no-such-host.invalid:8080": "cannot listen",
    f"{'a' * 70}.b:8080": "cannot listen",
    "..:8080": "cannot listen",
    "192.0.2.1:8080": "cannot listen",
}


@pytest.mark.parametrize(("address", "said"), ADDRESSES.items())
@pytest.mark.parametrize("local", [(), ("--local",)])
def test_an_address_nobody_can_listen_on_is_refused_before_anything(
    address, said, local, tmp_path, run
):
    path = tmp_path / "orders.yaml"
    path.write_text(TEXT)
    store = f"sqlite:///{tmp_path}/state.db"
    code, words = run("run", path, "--store", store, "--api-addr", address, *local)
    assert code == 2
    assert "--api-addr" in words
    assert said in words
    assert not (tmp_path / "state.db").exists()


def test_an_address_that_is_taken_is_refused_before_anything(tmp_path, run):
    path = tmp_path / "orders.yaml"
    path.write_text(TEXT)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        store = f"sqlite:///{tmp_path}/state.db"
        code, words = run("run", path, "--store", store, "--api-addr", address)
    assert code == 2
    assert f"cannot listen on {address}" in words
    assert not (tmp_path / "state.db").exists()


HUGE = str(2**63)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("stop", "orders", "--grace", "-1"), "--grace"),
        (("stop", "orders", "--grace", "nan"), "--grace"),
        (("stop", "orders", "--grace", "inf"), "--grace"),
        (("dlq", "list", "orders", "--limit", "0"), "--limit"),
        (("dlq", "list", "orders", "--limit", HUGE), "--limit"),
        (("dlq", "list", "orders", "--after", HUGE), "--after"),
        (("dlq", "list", "orders", "--after", "-1"), "--after"),
        (("dlq", "peek", "orders", HUGE), "seq"),
        (("dlq", "ack", "orders", HUGE), "up_to_seq"),
        (("dlq", "replay", "orders", "--seq", HUGE), "--seq"),
        (("dlq", "replay", "orders", "--first", HUGE), "--first"),
        (("dlq", "replay", "orders", "--last", "-1"), "--last"),
        (("dlq", "replay", "orders", "--last", "1.5"), "--last"),
        (("schemas", "orders", "t", "--version", HUGE), "--version"),
        (("schemas", "orders", "t", "--sequence", "-1"), "--sequence"),
    ],
    ids=lambda told: " ".join(told) if isinstance(told, tuple) else "",
)
def test_numbers_out_of_range_are_refused_by_name(words, named, tmp_path, run):
    dsn = f"sqlite:///{tmp_path}/state.db"
    store = StoreLocation.from_dsn(dsn).create()
    pipelines.apply(store, TEXT)
    store.close()
    code, said = run(*words, "--store", dsn)
    assert code == 2
    assert named in said
    assert "Traceback" not in said


@pytest.mark.parametrize("name", ["", "two words", "-x", "x" * 64, "größe"])
def test_a_name_that_no_token_can_have_makes_no_store(name, tmp_path, run):
    code, words = run("token", "create", "--store", f"sqlite:///{tmp_path}/state.db", "--", name)
    assert code == 2
    assert "a token's name has" in words
    assert not (tmp_path / "state.db").exists()


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("--storage-path", "x.db", "validate", "x.yaml"), "--storage-path"),
        (("--local", "validate", "x.yaml"), "--local"),
        (("--api-addr", "0.0.0.0:8080"), "--api-addr"),
        (("serve", "--metrics-addr", "9095"), "--metrics-addr"),
        (("fleet", ".", "--local", "--metrics-addr", "9095"), "--metrics-addr"),
        (("rewind", "orders", "--to", "1", "--tables", "", "--yes"), "--tables"),
        (("verify", "orders", "--tables", ""), "--tables"),
        (("verify", "orders", "--sinks", ", "), "--sinks"),
    ],
)
def test_an_option_that_would_mean_nothing_or_everything_is_refused_by_name(words, option):
    refused = CliRunner().invoke(app, words).exception
    assert isinstance(refused, SpecError)
    assert option in str(refused)


def test_variables_of_an_image_do_not_stand_in_the_way_of_other_commands(monkeypatch):
    monkeypatch.setenv("DELTAFORGE_LOCAL", "true")
    monkeypatch.setenv("DELTAFORGE_METRICS_ADDR", "0.0.0.0:9000")
    assert CliRunner().invoke(app, ["schema"]).exit_code == 0
