"""What Airflow loads: the page, its DAG tab, the application that serves both, and a listener.

Every Airflow component imports this module, workers and DAG processors too. So it imports next to
nothing; the application is built when the API server gets its first request.
"""

from collections.abc import Callable
from typing import Any

from airflow.configuration import conf
from airflow.plugins_manager import AirflowPlugin

from airflow_provider_deltaforge.plugins_airflow import listener

PREFIX = "/deltaforge"
# Relative, so that the browser resolves it below the path of `[api] base_url`.
_STATIC = "deltaforge/static"
_LOOKS = {
    "name": "DeltaForge",
    "icon": f"{_STATIC}/icon.svg",
    "bundle_url": f"{_STATIC}/airflow.js",
}


class LazyApplication:
    """An ASGI application that is built by ``build`` when it is first asked for something."""

    def __init__(self, build: Callable[[], Any]) -> None:
        self._build = build
        self._application: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        if self._application is None:
            self._application = self._build()
        await self._application(scope, receive, send)


def _application() -> Any:
    """Return the page's files, which anybody may read, and the REST API, which asks who it is."""
    from fastapi import FastAPI

    from airflow_provider_deltaforge.api.page import PageFiles
    from airflow_provider_deltaforge.plugins_airflow.rest import create_rest_app

    app = FastAPI(title="DeltaForge", docs_url=None, redoc_url=None, openapi_url=None)
    app.mount("/static", PageFiles())
    app.mount("/api", create_rest_app())
    return app


def _react_apps() -> list[dict[str, str]]:
    nav = {**_LOOKS, "destination": "nav", "url_route": "deltaforge"}
    tab = {**_LOOKS, "destination": "dag", "url_route": "deltaforge-dag"}
    return [nav, tab] if conf.getboolean("deltaforge", "dag_tab", fallback=True) else [nav]


class DeltaForgePlugin(AirflowPlugin):
    """The page *DeltaForge* and a tab of the same name on every DAG.

    The tab shows the pipelines that the DAG supervises. ``[deltaforge] dag_tab = False`` hides it.
    """

    name = "deltaforge"
    fastapi_apps = [  # noqa: RUF012 - Airflow reads class attributes
        {"app": LazyApplication(_application), "url_prefix": PREFIX, "name": "DeltaForge"}
    ]
    react_apps = _react_apps()
    listeners = [listener]  # noqa: RUF012
