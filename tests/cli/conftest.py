from tests.control.conftest import backend, dsn, store  # noqa: F401 - fixtures
