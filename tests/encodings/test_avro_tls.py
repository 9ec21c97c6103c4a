"""A schema registry behind TLS: the authority and our certificate are settings."""

import ssl

import pytest
from pydantic import SecretStr, ValidationError

from airflow_provider_deltaforge.encodings.avro import AvroEncoding
from airflow_provider_deltaforge.encodings.avro.subjects import Subjects
from airflow_provider_deltaforge.errors import AccessError, SpecError
from tests.encodings.answering import Answering
from tests.sinks.certificates import certified

SCHEMA = '{"type": "string"}'


@pytest.fixture
def keys(tmp_path):
    return certified(tmp_path)


@pytest.fixture
def registry(keys):
    """A registry that asks clients for a certificate."""
    answering = Answering(status=200)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys.certificate, keys.key)
    context.load_verify_locations(keys.certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    answering.socket = context.wrap_socket(answering.socket, server_side=True)
    answering.body = b'{"id": 7}'
    yield answering.url.replace("http://", "https://")
    answering.end()


def subjects(url, **settings):
    encoding = AvroEncoding(schema_registry_url=url, **settings)
    password = SecretStr("пароль/@")
    return Subjects(encoding.schema_registry_url, "u", password, "sink s", encoding._tls())


def test_who_names_the_authority_and_shows_a_certificate_is_let_in(registry, keys):
    named = {"ca_file": str(keys.certificate), "cert_file": str(keys.both)}
    assert subjects(registry, **named).id_of("s", SCHEMA) == 7


def test_an_authority_that_is_not_known_is_an_access_error_that_names_the_key(registry):
    with pytest.raises(AccessError, match=r"encoding\.ca_file"):
        subjects(registry).id_of("s", SCHEMA)


def test_files_that_cannot_be_used_are_named(tmp_path):
    with pytest.raises(SpecError, match=r"ca_file.*cannot be used"):
        subjects("https://r", ca_file=str(tmp_path / "none.pem"))


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"schema_registry_url": "http://r", "ca_file": "/ca"}, "ca_file"),
        ({"schema_registry_url": "https://r", "key_file": "/k"}, "key_file"),
        ({"schema_registry_url": "https://r", "key_password": "x"}, "key_password"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, key):
    with pytest.raises(ValidationError, match=key):
        AvroEncoding(**settings)
