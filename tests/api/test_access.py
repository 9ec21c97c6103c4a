"""Pages of other sites, in a browser of this machine: with and without tokens."""

import httpx
import pytest

from airflow_provider_deltaforge.api.access import by_token, on_this_machine
from airflow_provider_deltaforge.api.app import create_app
from airflow_provider_deltaforge.api.context import ApiContext
from airflow_provider_deltaforge.api.server import serving
from airflow_provider_deltaforge.cli.rest import Access
from airflow_provider_deltaforge.control.tokens import create
from airflow_provider_deltaforge.errors import SpecError
from tests.api.conftest import opener

OURS, FOREIGN = "https://ops.example.com", "https://evil.example"


@pytest.fixture
def without_tokens(dsn, store, backend):
    opened = opener(dsn)
    context = ApiContext(opened, backend, None, on_this_machine([OURS]))
    with serving(create_app(context, origins=[OURS]), "127.0.0.1:0") as url:
        yield url


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": "OWN"}, 200),
        ({"Origin": OURS}, 200),
        ({"Origin": FOREIGN}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://["}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example:80"}, 403),
        ({"Host": "localhost:1", "Origin": "http://localhost:1"}, 200),
    ],
)
def test_without_tokens_a_browser_of_this_machine_asks_for_no_other_site(
    without_tokens, headers, status
):
    headers = {key: without_tokens if value == "OWN" else value for key, value in headers.items()}
    assert httpx.get(f"{without_tokens}/pipelines", headers=headers).status_code == status


@pytest.mark.parametrize("origin", [OURS, FOREIGN, None])
def test_another_sites_page_is_answered_if_it_is_named(dsn, store, backend, origin):
    opened = opener(dsn)
    token = {"Authorization": f"Bearer {create(store, 'page', 'admin')}"}
    context = ApiContext(opened, backend, None, by_token(opened))
    asks = {"Access-Control-Request-Method": "PATCH", "Access-Control-Request-Headers": "x"}
    asks["Access-Control-Request-Headers"] = "authorization, content-type"
    for origins in ([OURS], []):
        with serving(create_app(context, origins=origins), "127.0.0.1:0") as url:
            headers = {"Origin": origin} if origin else {}
            before = httpx.options(f"{url}/pipelines/x", headers=headers | asks)
            answer = httpx.get(f"{url}/pipelines", headers=headers | token)
        is_named = origin in origins
        assert (before.status_code == 200) == is_named
        assert answer.status_code == 200
        for told in (before, answer):
            allowed = told.headers.get("access-control-allow-origin")
            assert allowed == (origin if is_named else None)
            assert "access-control-allow-credentials" not in told.headers


@pytest.mark.parametrize(
    ("access", "key"),
    [
        (Access("0.0.0.0:8080", no_auth=True), "--no-auth"),
        (Access("127.0.0.1:8080", origins=["*"]), "--cors-origin"),
        (Access("127.0.0.1:8080", origins=["ops.example.com"]), "--cors-origin"),
        (Access("127.0.0.1:8080", origins=[f"{OURS}/"]), "--cors-origin"),
    ],
)
def test_what_lets_in_more_than_was_meant_is_refused(access, key):
    with pytest.raises(SpecError, match=key):
        access.check()
