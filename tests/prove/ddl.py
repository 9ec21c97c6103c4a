"""Tables that change under writers, copies and restarts, storm after storm; the oracle judges."""

import time

from tests.e2e.ddl_storm import Storm
from tests.prove.unit import Task, Unit

SEEDS = 5
"""Of each server, with and without names in the log: together about a quarter of an hour."""
STATEMENTS = 100
_SERVERS = ("mysql", "mariadb")


def units(seeds: int) -> list[Unit]:
    """Return every storm; those over one server follow each other."""
    return [
        Unit(
            area="ddl",
            name=f"{server}/{'names' if names else 'no_names'}/{seed}",
            run=f"{__name__}:run",
            cases=[{"server": server, "names_in_log": names, "seed": seed}],
            kind=server,
            seconds=50,
            limit_s=900,
            servers=(server,),
        )
        for server in _SERVERS
        for seed in range(seeds)
        for names in (True, False)
    ]


def run(task: Task) -> None:
    """Let one storm rage."""
    [case] = task.cases
    began = time.monotonic()
    number = case["seed"] * 4 + 2 * (not case["names_in_log"]) + (case["server"] == "mariadb")
    try:
        server = task.started[case["server"]]
        wrong = Storm(server, number, full=case["names_in_log"]).rage(STATEMENTS)
    except Exception as error:  # noqa: BLE001 - one storm's end is a result
        wrong = [f"{type(error).__name__}: {error}"]
    task.add(
        {
            **case,
            "statements": STATEMENTS,
            "seconds": round(time.monotonic() - began, 1),
            "result": "wrong" if wrong else "ok",
            "wrong": [line[:2000] for line in wrong],
        }
    )
