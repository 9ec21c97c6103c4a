"""Servers that stay up between commands: ``python -m tests.servers up|down|ps [names]``."""

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.servers import kafka, mariadb, mysql, nats, postgres, redis, schema_registry
from tests.servers.process import HOST, Server, ServerError, answers, end, running

_STATE = Path(__file__).parents[2] / ".deltaforge" / "servers"


@dataclass(frozen=True)
class Kept:
    """A server of ``./dev.sh up``: how it starts, where it listens, what addresses it."""

    start: Callable[..., Server]
    port: int
    address: str
    stop_signal: signal.Signals = signal.SIGTERM


SERVERS = {
    "mysql": Kept(mysql.start, 33306, f"mysql://df:df-secret@{HOST}:33306/"),
    "mariadb": Kept(mariadb.start, 33307, f"mysql://df:df-secret@{HOST}:33307/"),
    "postgres": Kept(
        postgres.start, 35432, f"postgresql://postgres@{HOST}:35432/postgres", signal.SIGINT
    ),
    "postgres18": Kept(
        partial(postgres.start, version=18),
        35433,
        f"postgresql://postgres@{HOST}:35433/postgres",
        signal.SIGINT,
    ),
    "kafka": Kept(kafka.start, 39092, f"{HOST}:39092"),
    "redis": Kept(redis.start, 36379, f"redis://{HOST}:36379"),
    "schema_registry": Kept(schema_registry.start, 38081, f"http://{HOST}:38081/apis/ccompat/v7"),
    "nats": Kept(nats.start, 34222, f"nats://{HOST}:34222"),
}
_USUAL = ("mysql", "postgres", "kafka")


def main(arguments: Sequence[str]) -> int:
    """Run one verb and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.servers", description=__doc__)
    parser.add_argument("verb", choices=["up", "down", "ps"])
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(SERVERS)}")
    chosen = parser.parse_args(arguments)
    unknown = sorted(set(chosen.names) - set(SERVERS))
    if unknown:
        parser.error(f"unknown server {unknown[0]!r} (known: {', '.join(SERVERS)})")
    if chosen.verb == "up":
        return _up(chosen.names or _USUAL)
    names = chosen.names or list(SERVERS)
    return _down(names) if chosen.verb == "down" else _ps(names)


def _up(names: Sequence[str]) -> int:
    for name in names:
        server, directory = SERVERS[name], _STATE / name
        if running(directory):
            print(f"{name:10} is up already   {server.address}")
            continue
        if _answers(server.port):
            print(f"{name}: port {server.port} is taken by another program", file=sys.stderr)
            return 1
        print(f"{name:10} is starting …", flush=True)
        try:
            server.start(directory, server.port, keep=True)
        except ServerError as error:
            print(error, file=sys.stderr)
            return 1
        print(f"{name:10} is up           {server.address}", flush=True)
    return 0


def _down(names: Sequence[str]) -> int:
    for name in names:
        if end(_STATE / name, SERVERS[name].stop_signal):
            print(f"{name:10} is down", flush=True)
    return 0


def _ps(names: Sequence[str]) -> int:
    for name in names:
        record = running(_STATE / name)
        state = "down"
        if record:
            state = f"up, pid {record['pid']}" if _answers(record["port"]) else "does not answer"
        print(f"{name:10} {state:18} {SERVERS[name].address}")
    return 0


def _answers(port: int) -> bool:
    try:
        answers(port)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
