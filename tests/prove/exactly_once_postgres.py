"""Every border of a stream from PostgreSQL into every sink that delivers exactly once.

Without Spark, and with one sink away for a while. On Spark ``exactly_once`` has the sinks, and
``kills_postgres`` the source.
"""

from tests.prove.exactly_once import run_chains
from tests.prove.report import Report

_PLACES = ("plain", "behind")


def prove(seeds: int, report: Report) -> bool:
    """Run the chains; say whether every sink of every one held."""
    return run_chains(seeds, report, "postgres", _PLACES)
