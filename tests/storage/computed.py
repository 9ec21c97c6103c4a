"""A write whose value is computed inside its transaction, so that tests can act there."""

from collections.abc import Callable

from airflow_provider_deltaforge.storage.contract import Put


class ComputedPut(Put):
    """A ``Put`` that calls ``compute`` for its value when the store writes it.

    The fence has let the transaction through by then, and it is not committed yet.
    """

    def __init__(self, namespace: str, key: str, compute: Callable[[], bytes]) -> None:
        for name, value in (("namespace", namespace), ("key", key), ("ttl_s", None)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "compute", compute)

    @property
    def value(self) -> bytes:  # type: ignore[override]
        """Return what ``compute`` returns."""
        compute: Callable[[], bytes] = self.__dict__["compute"]
        return compute()
