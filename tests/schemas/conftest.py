"""The PostgreSQL store, as the tests of stores have it."""

from tests.storage.conftest import postgres_dsn  # noqa: F401 - a fixture
