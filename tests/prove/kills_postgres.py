"""Every persistence border against every victim on Spark, over PostgreSQL under live writers."""

import shutil
import tempfile
from functools import partial
from pathlib import Path

from tests.prove.kills import run_matrix
from tests.prove.report import Report
from tests.servers import postgres
from tests.sources.postgres.shop_run import ShopRun


def prove(seeds: int, report: Report) -> bool:
    """Run the matrix; say whether every cell held."""
    directory = Path(tempfile.mkdtemp(prefix="deltaforge-kills-postgres-"))
    server = postgres.start(directory)
    try:
        return run_matrix(seeds, report, partial(ShopRun, server=server))
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)
