"""``python -m tests.page.screenshots``: pictures of the page for the docs.

Writes ``docs/images/page*.png``, of pipelines whose records ``tests.page.fleet`` writes: behind a
server of the REST API, and in Airflow's own UI.
"""

import json
import os
import shutil
import sys
import tempfile
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from airflow_provider_deltaforge.api.access import on_this_machine
from airflow_provider_deltaforge.api.app import create_app
from airflow_provider_deltaforge.api.context import ApiContext
from airflow_provider_deltaforge.api.server import serving
from airflow_provider_deltaforge.control.fleet import Fleet
from airflow_provider_deltaforge.control.launching.contract import LaunchSpec
from airflow_provider_deltaforge.control.launching.local import LocalBackend
from airflow_provider_deltaforge.storage.location import StoreLocation
from tests.page.browser import PHONE, browsing, opened
from tests.page.fleet import add_backfill, beating, fill

IMAGES = Path(__file__).parents[2] / "docs" / "images"
OWNER = "airflow:shop/stream/manual__2026-11-21T20:00:00+00:00/-1#2@0123abcd"
MISTAKES = """apiVersion: deltaforge/v1
kind: Pipeline
metadata:
  name: orders
spec:
  source:
    type: mysql
    config:
      id: shop
      dsn: mysql://cdc:${MYSQL_PASSWORD}@db:3306/shop
      tabels: [shop.orders]
  sinks:
    - type: kafka
      config: {id: kafka, brokers: kafka:9092}
"""
_SETTLE_MS = 2500


def main() -> int:
    """Take every picture; return 0."""
    with ExitStack() as ending:
        place = Path(tempfile.mkdtemp(prefix="deltaforge-screenshots-"))
        ending.callback(shutil.rmtree, place, ignore_errors=True)
        browser = ending.enter_context(browsing())
        with _alone(place / "alone.db") as url:
            with opened(browser, url, viewport={"width": 1200, "height": 560}) as page:
                _pictures(page)
            with opened(browser, url, viewport=PHONE, color_scheme="dark") as page:
                page.goto("/ui/")
                _take(page, "page-phone")
        size = {"width": 1200, "height": 760}
        with _airflow(place) as url, opened(browser, url, viewport=size) as page:
            page.goto("/plugin/deltaforge?pipeline=orders")
            page.get_by_role("tab", name="Overview").wait_for()
            _take(page, "page-airflow")
            page.get_by_role("tab", name="Copies").click()
            _take(page, "airflow_page")
            page.goto("/dags/shop/plugin/deltaforge-dag")
            page.get_by_role("link", name="stock").wait_for()
            _take(page, "page-dag")
            page.evaluate("localStorage.setItem('theme', 'dark')")
            page.goto("/plugin/deltaforge")
            page.get_by_role("link", name="stock").wait_for()
            _take(page, "page-airflow-dark")
    return 0


def _pictures(page):
    page.goto("/ui/")
    page.get_by_role("link", name="stock").wait_for()
    page.wait_for_timeout(8000)  # Rates are of several seconds.
    _take(page, "page")
    page.get_by_role("link", name="orders").click()
    page.get_by_label("How far back").select_option("6h")
    page.locator(".df-plot").first.hover(position={"x": 150, "y": 40})
    _take(page, "page-pipeline", full_page=True)
    page.goto("/ui/?pipeline=clicks&tab=structure&sensed=shop.clicks:meta")
    _take(page, "page-structure", full_page=True)
    for tab in ("copies", "schemas"):
        page.goto(f"/ui/?pipeline=orders&tab={tab}")
        _take(page, f"page-{tab}", full_page=True)
    page.get_by_role("tab", name="Dead letters").click()
    page.get_by_role("button", name="Look").first.click()
    _take(page, "page-dead-letters", full_page=True)
    page.goto("/ui/?pipeline=stock")
    _take(page, "page-blocked")
    page.goto("/ui/")
    page.get_by_role("button", name="New pipeline…").click()
    page.get_by_label("Document").fill(MISTAKES)
    page.get_by_role("button", name="Check").click()
    page.set_viewport_size({"width": 1200, "height": 720})
    _take(page, "page-create")


def _take(page, name, **options):
    page.wait_for_timeout(_SETTLE_MS)
    path = IMAGES / f"{name}.png"
    page.screenshot(path=str(path), **options)
    print(f"{path.name}: {path.stat().st_size} bytes")


@contextmanager
def _alone(path):
    """A server of the REST API alone."""
    dsn = f"sqlite:///{path}"
    location = StoreLocation.from_dsn(dsn)
    backend = LocalBackend(path.with_suffix(".jobs"))
    fleet = Fleet(location, backend, LaunchSpec("", 0, "stream_job.py", dsn))
    context = ApiContext(lambda: closing(location.open()), backend, fleet, on_this_machine())
    with closing(location.create()) as store:
        filled = fill(store, hostile=False)
        with beating(dsn, filled), serving(create_app(context), "127.0.0.1:0") as url:
            yield url


@contextmanager
def _airflow(place):
    """Airflow's API server, everybody an administrator."""
    dsn = f"sqlite:///{place}/state.db"
    connection = {"conn_type": "deltaforge", "extra": {"path": f"{place}/state.db"}}
    os.environ |= {
        "AIRFLOW_HOME": str(place / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__API_AUTH__JWT_SECRET": "0123456789abcdef" * 8,
        "AIRFLOW_CONN_DELTAFORGE_DEFAULT": json.dumps(connection),
    }
    from airflow.api_fastapi.app import create_app as create_airflow
    from airflow.utils.db import initdb

    from tests.airflow.page_bench import add_dag

    initdb()
    add_dag("shop")
    with closing(StoreLocation.from_dsn(dsn).create()) as store:
        filled = fill(store, OWNER, hostile=False)
        add_backfill(store, "orders")
        with beating(dsn, filled), serving(create_airflow("core"), "127.0.0.1:0") as url:
            yield url


if __name__ == "__main__":
    sys.exit(main())
