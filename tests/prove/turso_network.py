"""The source ``turso`` over a network: a real libsql-server that is killed, frozen and set back.

Needs the program ``sqld``, on the path or named by ``DELTAFORGE_SQLD``.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from airflow_provider_deltaforge.errors import (
    AccessError,
    DeltaForgeError,
    PositionLostError,
    RetryableError,
)
from airflow_provider_deltaforge.sources.turso.hrana import HranaStream
from airflow_provider_deltaforge.sources.turso.server_address import server_of
from airflow_provider_deltaforge.sources.turso.tuning import TURSO_TUNING
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from tests.engine.scripted_run import NAME, kill
from tests.prove.unit import Case, Task, Unit
from tests.servers import sqld
from tests.servers.process import Server, ServerError
from tests.sinks.kafka_reader import read_topic
from tests.sources.turso.database import copied, events_of, source, told
from tests.sources.turso.exchanges import RECORDED, exchanges
from tests.sources.turso.server_shop import ServerConnection
from tests.sources.turso.shop_run import ShopRun
from tests.spec.documents import DOCUMENTS
from tests.waiting import wait_for

SEEDS = 5
TRIGGERS = {"cdc_mode": "triggers", "auto_create_triggers": True}
_DOCUMENT = DOCUMENTS["seed_example_turso_kafka"]
_PROGRAM = Path(sys.executable).with_name("deltaforge")
_SOURCE, _PORT = "turso-main", 8080
_TABLES = (
    "CREATE TABLE users (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, "
    "email TEXT UNIQUE, metadata TEXT)",
    "CREATE TABLE orders (id INTEGER PRIMARY KEY AUTOINCREMENT, user_id INTEGER NOT NULL, "
    "total REAL NOT NULL, status TEXT DEFAULT 'pending', "
    "created_at TEXT DEFAULT CURRENT_TIMESTAMP)",
)
_CHANGES = (
    "INSERT INTO users (name, email, metadata) VALUES ('Alice', 'alice@example.com', "
    """'{"role": "admin", "tags": ["vip"]}')""",
    "INSERT INTO orders (user_id, total, status) VALUES (1, 99.99, 'completed')",
)
_OF_COPIES = (CrashPoint.CHUNK_WRITTEN, CrashPoint.CHUNK_STORED)
_OF_STREAMS = (
    CrashPoint.SINK_WRITTEN,
    CrashPoint.CHECKPOINT_STORED,
    CrashPoint.SOURCE_ACKNOWLEDGED,
)
_ORDERS = "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT, price REAL)"
_LIMIT_S = 400.0


def units(seeds: int) -> list[Unit]:
    """Return every kill of every seed, and the attacks that need one run."""
    kills = [
        {"attack": f"killed at {point.value}", "victim": victim, "seed": seed}
        for seed in range(seeds)
        for point in (*_OF_COPIES, *_OF_STREAMS)
        for victim in ("driver", "driver and server")
    ]
    return [_unit(case) for case in (*kills, *({"attack": each, "seed": 0} for each in _ATTACKS))]


def run(task: Task) -> None:
    """Play one attack."""
    [case] = task.cases
    began = time.monotonic()
    result, wrong = "ok", []
    server: Server | None = None
    try:
        server = sqld.start(task.home / "sqld")
        attack = case["attack"]
        if attack.startswith("killed at "):
            wrong = _killed(case, task.home, server)
        else:
            wrong = _ATTACKS[attack](task, server)
    except ServerError as error:
        result = f"not possible: {error}"
    except (AssertionError, DeltaForgeError, OSError) as error:
        wrong = [f"{type(error).__name__}: {error}"[-3000:]]
    finally:
        if server is not None:
            server.stop()
    seconds = round(time.monotonic() - began, 1)
    task.add({**case, "result": "wrong" if wrong else result, "wrong": wrong, "seconds": seconds})


def _killed(case: Case, home: Path, server: Server) -> list[str]:
    """Kill a driver where it could lose something, and maybe the server beneath it."""
    point = CrashPoint(case["attack"].removeprefix("killed at "))
    snapshot = "initial" if point in _OF_COPIES or case["seed"] % 2 else "never"
    run = ShopRun(home, mode="triggers", snapshot=snapshot, url=server.url)
    run.shop.trade(40)
    run.shop.untriggered = len(run.shop.history)
    start = run.begin() if snapshot == "never" else None
    if start is None:
        run.source.head()  # Makes the triggers, whose count begins here.
    run.shop.trade(10 + case["seed"])
    driver = run.start(hold=(point, 1 + case["seed"] % 3))
    while not (run.held.exists() and run.held.read_text()):
        run.shop.trade(2)
        assert driver.poll() is None, run.log.read_text()[-3000:]
    if case["victim"] != "driver":
        server.kill()
    kill(run.wait_held(driver))
    driver.wait()
    if case["victim"] != "driver":
        server.start_again()
    start = start or run.first_position()
    run.shop.trade(20)
    driver = run.start()
    run.shop.trade(20)
    if case["victim"] != "driver":
        server.kill()
        time.sleep(1)
        server.start_again()
    run.shop.trade(20)
    run.wait_caught_up(driver)
    code = run.stop(driver)
    run.shop.close()
    return [*run.verdict(start), *([f"the driver ended with {code}"] if code else [])]


def _exchanges(_: Task, server: Server) -> list[str]:
    answers = json.loads(json.dumps(exchanges(server.url)))
    recorded = json.loads(RECORDED.read_text())
    return [f"{a} instead of {b}" for a, b in zip(answers, recorded, strict=True) if a != b]


def _frozen(task: Task, server: Server) -> list[str]:
    """A server that takes requests and answers none, for longer than we wait."""
    run = ShopRun(task.home, mode="triggers", url=server.url)
    start = run.begin()
    run.shop.untriggered = 0
    driver = run.start()
    run.shop.trade(30)
    server.pause()
    time.sleep(TURSO_TUNING.answer_s + 5)
    server.resume()
    run.shop.trade(30)
    run.wait_caught_up(driver)
    code = run.stop(driver)
    run.shop.close()
    return [*run.verdict(start), *([f"the driver ended with {code}"] if code else [])]


def _stopped(task: Task, server: Server) -> list[str]:
    """Stop a driver whose server is frozen: in order, in the time that supervisors give it."""
    run = ShopRun(task.home, mode="triggers", url=server.url)
    run.begin()
    run.shop.trade(5)
    document, store = task.home / "shop.yaml", f"sqlite:///{task.home}/other.db"
    document.write_text(run.document)
    with (task.home / "run.log").open("wb") as log:
        driver = subprocess.Popen(
            [_PROGRAM, "run", str(document), "--local", "--api-addr", "off", "--store", store],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    name, source_id = NAME, run.source.id
    checkpoints = Checkpoints(StoreLocation.from_dsn(store).create(), name, source_id)
    wait_for("its beginning", checkpoints.load)
    run.shop.trade(20)
    server.pause()
    time.sleep(1)
    began = time.monotonic()
    driver.terminate()
    code, seconds = driver.wait(60), time.monotonic() - began
    server.resume()
    run.shop.close()
    return [] if code == 0 else [f"ended with {code} after {seconds:.0f} s"]


def _older(task: Task, server: Server) -> list[str]:
    """A server that is set back, and counts past our place."""
    shop = ServerConnection(server.url)
    shop.run(_ORDERS)
    taken = source(server.url, **TRIGGERS)
    reader = taken.open(None)
    shop.run("INSERT INTO orders VALUES (1, 'tea', 2)")
    events_of(reader)
    server.stop()
    data, older = task.home / "sqld" / "data", task.home / "older"
    shutil.copytree(data, older)
    server.start_again()
    shop.run("INSERT INTO orders VALUES (2, 'mug', 2)")
    events_of(reader)
    place = taken.head()
    server.stop()
    shutil.rmtree(data)
    shutil.copytree(older, data)
    server.start_again()
    shop.run("INSERT INTO orders VALUES (3, 'new', 2)", "INSERT INTO orders VALUES (4, 'new', 2)")
    wrong = []
    for what, read in (
        ("a reader", lambda: events_of(reader)),
        ("a start", lambda: taken.open(place)),
    ):
        try:
            read()
            wrong.append(f"{what} does not notice it")
        except PositionLostError:
            pass
    reader.close()
    shop.close()
    return wrong


def _tokens(task: Task, _: Server) -> list[str]:
    """Tokens that are right, expired, of another key, and may not write."""
    key = Ed25519PrivateKey.generate()
    public = task.home / "key.pem"
    public.write_bytes(
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    tokens = {
        "right": _token(key, a="rw"),
        "expired": _token(key, a="rw", exp=int(time.time()) - 3600),
        "of another": _token(Ed25519PrivateKey.generate(), a="rw"),
        "may not write": _token(key, a="ro"),
        "none": None,
    }
    server = sqld.start(task.home / "strict", key=public)
    wrong = []
    try:
        ServerConnection(server.url, tokens["right"]).run(_ORDERS)
        for name, token in tokens.items():
            taken = source(server.url, auth_token=token, **TRIGGERS)
            found = {f.check: f.verdict for f in taken.preflight() if f.verdict == "fail"}
            wanted = {"right": {}, "may not write": {"write": "fail"}}.get(name, {"server": "fail"})
            if found != wanted:
                wrong.append(f"{name}: preflight finds {found}")
            try:
                taken.open(None).close()
                refused = False
            except AccessError:
                refused = True
            # Who may not write is refused once there is something to clean up.
            if refused != (name not in ("right", "may not write")):
                wrong.append(f"{name}: {'refused' if refused else 'not refused'}")
    finally:
        server.stop()
    return wrong


def _token(key: Ed25519PrivateKey, **claims: Any) -> str:
    parts = [{"alg": "EdDSA", "typ": "JWT"}, claims]
    text = ".".join(_base64(json.dumps(part).encode()) for part in parts)
    return f"{text}.{_base64(key.sign(text.encode()))}"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _stolen(_: Task, server: Server) -> list[str]:
    """A transaction of ours that is rolled back because another writer waited for long enough."""
    slow, other = _stream(server), _stream(server)
    slow.run(_ORDERS)
    slow.begin("BEGIN IMMEDIATE")
    slow.run("INSERT INTO orders VALUES (1, 'slow', 1)")
    other.begin("BEGIN IMMEDIATE")
    other.run("INSERT INTO orders VALUES (2, 'other', 1)")
    other.commit()
    refused = 0
    for statement in ("INSERT INTO orders VALUES (3, 'slow', 1)",) * 2:
        try:
            slow.run(statement)
        except RetryableError:
            refused += 1
    slow.close()
    rows = other.run("SELECT id FROM orders")
    other.close()
    return [] if (refused, rows) == (2, [(2,)]) else [f"{refused} refused, rows {rows}"]


def _values(_: Task, server: Server) -> list[str]:
    """Values of every kind, in more than one answer holds: stream and copy agree."""
    shop = ServerConnection(server.url)
    shop.run(_ORDERS)
    taken = source(server.url, **TRIGGERS)
    reader = taken.open(None)
    shop.run(
        "INSERT INTO orders VALUES (1, 'ü😀', 9e999), (2, x'00ff', -9e999), (3, '', 0.1), "
        "(9223372036854775807, NULL, 5e-324)",
        "WITH RECURSIVE r(n) AS (SELECT 4 UNION ALL SELECT n + 1 FROM r LIMIT 30) "
        "INSERT INTO orders SELECT n, hex(zeroblob(500000)), 1 FROM r",
    )
    streamed = [told(event)[3] for event in events_of(reader)]
    rows = [told(row)[3] for row in copied(taken)]
    reader.close()
    shop.close()
    same = sorted(streamed, key=lambda row: row["id"]) == sorted(rows, key=lambda row: row["id"])
    return [] if same and len(rows) == 34 else [f"{len(streamed)} streamed, {len(rows)} copied"]


def _document(task: Task, _: Server) -> list[str]:
    """Run the document of the page as it is written, address and all."""
    server = sqld.start(task.home / "written", _PORT)
    shop = ServerConnection(server.url)
    brokers = task.started["kafka"].dsn()
    store = f"sqlite:///{task.home}/state.db"
    words = ["run", str(_DOCUMENT), "--local", "--api-addr", "off", "--store", store]
    try:
        shop.run(*_TABLES)
        with (task.home / "driver.log").open("wb") as log:
            driver = subprocess.Popen(
                [_PROGRAM, *words],
                env={**os.environ, "KAFKA_BROKERS": brokers},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        checkpoints = Checkpoints(StoreLocation.from_dsn(store).create(), "turso2kafka", _SOURCE)
        wait_for("its beginning", checkpoints.load)
        shop.run(*_CHANGES)
        wait_for("both rows", lambda: len(read_topic(brokers, "turso.changes")) == len(_CHANGES))
        driver.terminate()
        code = driver.wait(60)
    finally:
        shop.close()
        server.stop()
    values = [json.loads(each.value or b"") for each in read_topic(brokers, "turso.changes")]
    arrived = sorted((value["source"]["table"], value["after"]["id"]) for value in values)
    wanted = [("orders", 1), ("users", 1)]
    return [] if (arrived, code) == (wanted, 0) else [f"delivered {arrived}, ended with {code}"]


def _stream(server: Server) -> HranaStream:
    return HranaStream(server_of(server.url), None, TURSO_TUNING)


_ATTACKS: dict[str, Callable[[Task, Server], list[str]]] = {
    "answers as recorded": _exchanges,
    "frozen": _frozen,
    "stopped while frozen": _stopped,
    "older data": _older,
    "tokens": _tokens,
    "transaction taken away": _stolen,
    "values and sizes": _values,
    "document as written": _document,
}


def _unit(case: Case) -> Unit:
    name = "/".join(str(case[key]) for key in ("attack", "victim", "seed") if key in case)
    return Unit(
        area="turso_network",
        name=name.replace(" ", "_"),
        run=f"{__name__}:run",
        cases=[case],
        kind=case["attack"].split(" at ")[0],
        seconds=25,
        limit_s=_LIMIT_S,
        servers=("kafka",) if case["attack"] == "document as written" else (),
    )
