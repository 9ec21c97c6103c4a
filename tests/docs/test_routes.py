"""The routes on the page of the REST API, and those that ``curl`` asks, are the API's."""

import re
from contextlib import nullcontext

import pytest

from airflow_provider_deltaforge.api.access import by_token
from airflow_provider_deltaforge.api.app import create_app
from airflow_provider_deltaforge.api.context import ApiContext
from airflow_provider_deltaforge.storage.memory import MemoryStore
from tests.docs.pages import DOCS, typed

_METHOD = re.compile(r"^(GET|POST|PATCH|DELETE|PUT) ")
_PARAMETER = re.compile(r"\{[^}]*\}")


@pytest.fixture(scope="module")
def routes():
    """Method and path of every route; what a path names is ``{}``."""
    store = MemoryStore()
    context = ApiContext(
        lambda: nullcontext(store), None, None, by_token(lambda: nullcontext(store))
    )
    found = create_app(context).openapi()["paths"]
    return {
        (method.upper(), _PARAMETER.sub("{}", path))
        for path, held in found.items()
        for method in held
    }


def shown():
    """Yield method and path of each route in the table of the page, written out."""
    table = (DOCS / "rest.md").read_text().partition("## Routes")[2].partition("\n## ")[0]
    for row in re.findall(r"^\| (`[^|]*`) \|", table, re.MULTILINE):
        method = "GET"
        for code in re.findall(r"`([^`]*)`", row):
            method = found[1] if (found := _METHOD.match(code)) else method
            path = _METHOD.sub("", code).partition("?")[0].replace("…", "/pipelines/{name}")
            yield method, _PARAMETER.sub("{}", path)


def test_every_route_of_the_page_is_there(routes):
    listed = set(shown())

    assert len(listed) > 30
    assert listed - routes == set()


def test_every_route_is_on_the_page(routes):
    assert routes - set(shown()) == set()


def test_what_curl_asks_is_there(routes):
    asked = [
        re.fullmatch(r"https?://[^/]+(?:/deltaforge/api)?(/[^?]*).*", word)[1]
        for command in typed()
        if command.words[0] == "curl"
        for word in command.words
        if re.match(r"https?://", word)
    ]
    known = {path for _, path in routes}

    assert asked
    for path in asked:
        assert any(re.fullmatch(re.escape(each).replace(r"\{\}", "[^/]+"), path) for each in known)
