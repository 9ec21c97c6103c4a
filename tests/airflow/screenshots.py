"""``python -m tests.airflow.screenshots``: pictures for the docs, of a real run.

Writes ``docs/images/airflow_*.png``.
"""

import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.airflow.rest_journey import COPY, PIPELINE, Journey
from tests.e2e import shop
from tests.page.browser import browsing
from tests.servers import kafka, mysql, postgres

IMAGES = Path(__file__).parents[2] / "docs" / "images"
SIZE = {"width": 1280, "height": 800}
BYTES_MAX = 150_000
_SETTLE_MS = 8000


def main() -> int:
    """Run the journey once and look at it; return 1 if a picture is too large."""
    with ExitStack() as ending:
        place = Path(tempfile.mkdtemp(prefix="deltaforge-screenshots-"))
        ending.callback(shutil.rmtree, place, ignore_errors=True)
        source, broker = mysql.start(place / "mysql"), kafka.start(place / "kafka")
        metadata = postgres.start(place / "postgres")
        for server in (source, broker, metadata):
            ending.callback(server.stop)
        journey = Journey(place / "journey", source, broker, metadata)
        journey.start()
        ending.callback(journey.end)
        with shop.Writers(source, "shop", pause_s=0.02):
            _travel(journey)
            with browsing() as browser:
                page = browser.new_page(viewport=SIZE)
                sizes = [_take(page, name, look) for name, look in _looks(journey)]
    return int(max(sizes) > BYTES_MAX)


def _travel(journey: Journey) -> None:
    journey.run = journey.first_run()
    journey.rest.unpause(COPY)
    journey.copy({"tables": ["shop.items"], "where": "id BETWEEN 500 AND 549", "mode": "always"})
    journey.backfill()


def _looks(journey: Journey) -> list[tuple[str, Callable[[Any], None]]]:
    """Return the name of each picture and how to get there."""
    url = journey.airflow.url

    def go(path: str) -> Callable[[Any], None]:
        return lambda page: page.goto(f"{url}{path}")

    def form(page: Any) -> None:
        page.goto(f"{url}/dags/{COPY}")
        page.get_by_role("button", name="Trigger").first.click()
        page.get_by_text("Tables to copy again").first.wait_for()

    return [
        ("dags", go("/dags?tags=deltaforge")),
        ("run", go(f"/dags/{PIPELINE}/runs/{journey.run}")),
        ("form", form),
        ("backfill", go(f"/dags/{COPY}/backfills")),
    ]


def _take(page: Any, name: str, look: Callable[[Any], None]) -> int:
    """Take one picture; return its size in bytes."""
    look(page)
    page.wait_for_timeout(_SETTLE_MS)
    path = IMAGES / f"airflow_{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=str(path))
    print(f"{path.name}: {path.stat().st_size} bytes")
    return path.stat().st_size


if __name__ == "__main__":
    sys.exit(main())
