"""A chain of kills of one pipeline: a copy first, then its stream, into every kind of sink.

A file gets everything at least once; Kafka, Redis and NATS get each change exactly once.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.e2e.exact_shop import Chain, ExactShop, played
from tests.e2e.kill_plan import planned
from tests.engine.spark_kills import Stage
from tests.servers.process import Server


def run_kill_chain(
    source: str,
    place: str,
    seed: int,
    directory: Path,
    servers: Mapping[str, Server],
    cluster: Callable[[], Stage] | None = None,
) -> Chain:
    """Kill a pipeline as a seed's plan says, and judge what every sink holds.

    Args:
        source: of ``tests.e2e.exact_sources.SHOPS``.
        place: ``process`` or ``spark``.
        seed: of the plan.
        directory: an own, empty directory.
        servers: the source's, and those of ``tests.engine.exact_run.PLACES``.
        cluster: starts or returns the cluster; asked only by plans whose executors die.
    """
    plan = planned(source, place, seed)
    directory.mkdir(parents=True, exist_ok=True)
    shared = cluster() if plan.cluster and cluster is not None else None
    master = None if place == "process" else "local[2]"
    chain = Chain(source, place, seed)

    def make() -> ExactShop:
        return ExactShop(
            directory,
            master=shared.cluster.url if shared is not None else master,
            snapshot="initial" if plan.snapshot else "never",
            dsn=shared.database(f"chain_{time.time_ns()}") if shared is not None else None,
            servers=servers,
            source=source,
            with_file=True,
            shared=shared,
        )

    return played(chain, make, plan.kills)
