"""One of each server for a whole test session, started when the first test asks for it."""

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.ordering import rough_s
from tests.servers import kafka, mariadb, mysql, nats, postgres, redis, schema_registry
from tests.servers.process import Server, python_path

# Every JVM of a test lives for a minute: the optimising compilers would never pay for themselves,
# nor would verifying the thousands of classes that Spark and Kafka load.
os.environ.setdefault(
    "JDK_JAVA_OPTIONS",
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
)
os.environ["PYTHONPATH"] = python_path()
# The console keeps the width that it finds when it is imported: tables would break at whatever the
# terminal has that started the tests.
os.environ.pop("COLUMNS", None)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a reviewed change rewrite the files that hold wire shapes."""
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start long files first; see ``tests/ordering.py``."""
    items.sort(key=lambda item: -rough_s(item.nodeid))


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Take back what a command or driver that ran in this process set for its logs."""
    root = logging.getLogger()
    level, former = root.level, {*root.handlers}
    yield
    for handler in {*root.handlers} - former:
        root.removeHandler(handler)
    root.setLevel(level)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path, bytes], None]:
    """Compare bytes with a file; with --update-golden, write them there."""

    def check(path: Path, found: bytes) -> None:
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(found)
        is_renewed_by = "look at the difference, then renew it with --update-golden"
        assert path.read_bytes() == found, f"{path}: {is_renewed_by}"

    return check


@pytest.fixture(scope="session")
def mysql_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """MySQL 9 with GTIDs and full row metadata."""
    server = mysql.start(tmp_path_factory.mktemp("mysql"))
    yield server
    server.discard()


@pytest.fixture(scope="session")
def mariadb_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """MariaDB with a row-format log and full row metadata."""
    server = mariadb.start(tmp_path_factory.mktemp("mariadb"))
    yield server
    server.discard()


@pytest.fixture(scope="session")
def kafka_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One Kafka broker; topics are created when first named."""
    server = kafka.start(tmp_path_factory.mktemp("kafka"))
    yield server
    server.discard()


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """NATS of the machine's own packages, with JetStream on disk."""
    server = nats.start(tmp_path_factory.mktemp("nats"))
    yield server
    server.discard()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Redis that flushes every write to its append-only file."""
    server = redis.start(tmp_path_factory.mktemp("redis"))
    yield server
    server.discard()


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """PostgreSQL of the machine's own packages (15 on Debian 12) with logical WAL."""
    server = postgres.start(tmp_path_factory.mktemp("postgres"))
    yield server
    server.discard()


@pytest.fixture(scope="session")
def postgres18_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """PostgreSQL 18 with logical WAL."""
    server = postgres.start(tmp_path_factory.mktemp("postgres18"), version=18)
    yield server
    server.discard()


@pytest.fixture(scope="session")
def schema_registry_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A schema registry that speaks Confluent's API."""
    server = schema_registry.start(tmp_path_factory.mktemp("schema_registry"))
    yield server
    server.discard()
