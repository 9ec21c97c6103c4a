"""Tables that change under writers, copies and restarts for twenty minutes; the oracle judges."""

import os
import tempfile
import time
from pathlib import Path

from tests.e2e.ddl_storm import Storm
from tests.prove.report import Report
from tests.servers import mariadb, mysql
from tests.servers.process import Server

MINUTES = "DELTAFORGE_PROVE_DDL_MINUTES"
"""Environment variable: how long to go on; the file says how long it was."""

STATEMENTS = 100


def prove(seeds: int, report: Report) -> bool:
    """Let storm follow storm, on each server with and without names in the log."""
    minutes = float(os.environ.get(MINUTES, "20"))
    held = True
    with tempfile.TemporaryDirectory(prefix="deltaforge-ddl-") as place:
        servers = [mysql.start(Path(place) / "mysql"), mariadb.start(Path(place) / "mariadb")]
        try:
            for series in range(seeds):
                until = time.monotonic() + minutes * 60
                number = 0
                while time.monotonic() < until:
                    server, full = servers[number % 2], number % 4 < 2
                    seed = series * 1000 + number
                    held = _storm(report, server, seed, full=full, minutes=minutes) and held
                    number += 1
        finally:
            for server in servers:
                server.stop()
    report.write(complete=True)
    return held


def _storm(report: Report, server: Server, seed: int, *, full: bool, minutes: float) -> bool:
    began = time.monotonic()
    try:
        wrong = Storm(server, seed, full=full).rage(STATEMENTS)
    except Exception as error:  # noqa: BLE001 - one storm's end is a result
        wrong = [f"{type(error).__name__}: {error}"]
    case = {
        "server": server.name,
        "names_in_log": full,
        "seed": seed,
        "statements": STATEMENTS,
        "of_minutes": minutes,
        "seconds": round(time.monotonic() - began, 1),
        "result": "wrong" if wrong else "ok",
        "wrong": [line[:2000] for line in wrong],
    }
    report.add(case)
    return not wrong
