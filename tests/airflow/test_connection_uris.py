"""What the extra of an Airflow connection does to the address that a document gets."""

import json

import pytest
from airflow.sdk import Connection

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.hooks.jobs import PipelineTask
from airflow_provider_deltaforge.sources.mysql.dsn import parse_dsn as mysql
from airflow_provider_deltaforge.sources.postgres.connection import parse_dsn as postgres


@pytest.fixture
def address(monkeypatch):
    """The address that a document gets from a connection."""

    def of(conn_type, extra):
        place = {"host": "db", "port": 5432, "login": "df", "password": "p@s?s", "schema": "crm"}
        value = json.dumps({"conn_type": conn_type, **place, "extra": extra})
        monkeypatch.setenv("AIRFLOW_CONN_SHOP", value)
        return PipelineTask(None, connections={"DSN": "shop"}).environment()["DSN"]

    return of


def test_extras_that_the_server_knows_are_parameters_numbers_too(address):
    options = postgres(address("postgres", {"sslmode": "require", "keepalives_idle": 30}))

    assert (options["sslmode"], options["keepalives_idle"]) == ("require", "30")
    assert (options["password"], options["dbname"]) == ("p@s?s", "crm")
    assert mysql(address("mysql", {"ssl_mode": "required"})).ssl_mode == "required"


@pytest.mark.parametrize(
    ("extra", "value"),
    [("options", "-c statement_timeout=0"), ("sslrootcert", "/etc/my certs/a+b.pem")],
)
def test_blanks_of_an_extra_reach_the_server(address, extra, value):
    assert postgres(address("postgres", {extra: value}))[extra] == value
    assert mysql(address("mysql", {"ssl_ca": "/etc/my certs/a+b.pem"})).ssl_ca == (
        "/etc/my certs/a+b.pem"
    )


def test_an_address_without_an_extra_is_as_airflow_writes_it(address):
    assert address("postgres", {}) == Connection(
        conn_id="shop", conn_type="postgres", host="db", port=5432, login="df", password="p@s?s",
        schema="crm",
    ).get_uri()  # fmt: skip


@pytest.mark.parametrize(
    ("extra", "name"),
    [
        ({"sslmode": "require", "cursor": "dictcursor"}, "cursor"),
        ({"sslmode": "require", "options": {"a": 1}}, "__extra__"),
        ({"sslmode": "require", "iam": False}, "__extra__"),
    ],
)
@pytest.mark.parametrize(("conn_type", "parse"), [("postgres", postgres), ("mysql", mysql)])
def test_an_extra_that_no_server_knows_is_refused_by_its_name(
    address, conn_type, parse, extra, name
):
    if conn_type == "mysql":
        extra.pop("sslmode")
    with pytest.raises(SpecError, match=name) as caught:
        parse(address(conn_type, extra))
    for wrong in ("percent-encode", "dictcursor", "p@s", "p%40s"):
        assert wrong not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "postgres://df:pa?ss=x@db/crm?cursor=a",
        "postgres://df:p@a?ss=x@db/crm?cursor=a",
        "postgres://df:pa?ss=x",
        "host=db password='postgres://a@b?ss=x' cursor=y",
    ],
)
def test_what_may_be_a_password_is_taken_for_no_parameter(text):
    with pytest.raises(SpecError) as caught:
        postgres(text)
    assert "ss" not in str(caught.value).replace("password", "")
