"""Which state store a pipeline runs with: its document's own, or the one the process was given."""

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.storage.location import StoreLocation


def store_in(document: str) -> StoreLocation | None:
    """Return the store that a document names, in ``spec`` or beside it; None if it names none.

    Args:
        document: its text, unexpanded; variables are resolved where the store is opened.

    Raises:
        SpecError: the document is wrong.
    """
    settings = load(document, expand=False).state_store
    if settings is None:
        return None
    try:
        return StoreLocation(backend=settings.backend, path=settings.path, dsn=settings.dsn)
    except ValueError as error:
        raise SpecError(
            "spec.storage: give 'path' with backend sqlite, and 'dsn' with any other"
        ) from error


def check_store(document: str, location: StoreLocation) -> None:
    """Refuse a document that names another store than the one its driver was started with.

    A relative path means the working directory of the driver's starter, so it cannot be compared
    here.

    Raises:
        SpecError: it does, or the document is wrong.
    """
    settings = load(document, expand=False).state_store
    path = settings.path if settings is not None else None
    if path is None or path.startswith(("/", "~", "${")):
        store_of(document, location)


def store_of(document: str, location: StoreLocation | None) -> StoreLocation:
    """Return the store a pipeline runs with.

    Args:
        document: its text, unexpanded.
        location: what ``--store``, ``DELTAFORGE_STORE`` or an Airflow connection names; None when
            nobody named one.

    Raises:
        SpecError: the document names another store than ``location``, or is wrong.
    """
    own = store_in(document)
    if own is None:
        return location or StoreLocation.from_environment({})
    if location is not None and not own.is_same(location):
        raise SpecError(
            f"spec.storage: the document names the state store {own.shown()}, but this process was "
            f"given {location.shown()} (--store, DELTAFORGE_STORE or an Airflow connection); take "
            "one of them out, or make them equal"
        )
    return own
