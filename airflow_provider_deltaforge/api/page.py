"""The page: files that a browser runs. What they show comes from the routes of the REST API."""

from pathlib import Path
from typing import Any

from starlette.responses import RedirectResponse, Response
from starlette.staticfiles import StaticFiles

from airflow_provider_deltaforge import __file__ as _package

FILES = Path(_package).with_name("page")
"""ES modules, their style sheet, and the React that they use where nobody lends them one."""

HEADERS = {
    # Nothing from elsewhere, nothing inline: names and values that look like HTML stay text, and
    # what ran in spite of that could send nothing away.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class PageFiles(StaticFiles):
    """The page's files, which browsers ask about each time, so that a new release shows at once.

    Args:
        headers: sent with each of them.
    """

    def __init__(self, headers: dict[str, str] | None = None) -> None:
        super().__init__(directory=FILES, html=True)
        self._headers = {"Cache-Control": "no-cache", **(headers or {})}

    async def get_response(self, path: str, scope: Any) -> Response:
        """Return the file, or 304 when the browser has it."""
        response = await super().get_response(path, scope)
        response.headers.update(self._headers)
        return response


def mount(app: Any) -> None:
    """Serve the page at ``/ui/``, and send whoever asks for ``/`` there."""

    def to_page() -> RedirectResponse:
        return RedirectResponse("ui/")

    app.add_api_route("/", to_page, include_in_schema=False)
    app.mount("/ui", PageFiles(HEADERS))
