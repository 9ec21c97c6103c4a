"""A connection that its borrower cannot close."""

from typing import Any


class Lent:
    """Stands for a connection that belongs to somebody else; closing it does nothing."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        """Return whatever the connection has."""
        return getattr(self._connection, name)

    def __enter__(self) -> "Lent":
        """Begin nothing."""
        return self

    def __exit__(self, *_: object) -> None:
        """End nothing."""

    def close(self) -> None:
        """Leave the connection open."""
