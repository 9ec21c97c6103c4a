"""A real browser, Debian's chromium, for tests of the page."""

import shutil
from contextlib import contextmanager

import pytest

SIZE = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}
PATIENCE_MS = 120_000


@contextmanager
def browsing():
    """Yield a browser; every page of it is asked for in ``opened``."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium")
    if program is None:
        raise RuntimeError("no chromium here; run: sudo apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def opened(browser, url, **options):
    """Yield a page; nothing may be written to the browser's console that says of a mistake."""
    mistakes = []

    def note(message):
        # A browser reports every answer from 400 on as a mistake; the page has shown it.
        if message.type in {"error", "warning"} and "Failed to load resource" not in message.text:
            mistakes.append(message.text)

    context = browser.new_context(base_url=url, **{"viewport": SIZE, **options})
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.on("console", note)
    page.on("pageerror", lambda error: mistakes.append(str(error)))
    yield page
    context.close()
    assert mistakes == []


@pytest.fixture(scope="module")
def browser():
    """One browser for a module's tests."""
    with browsing() as found:
        yield found
