"""What the modes read: one database of SQLite's kind, in a file or behind a server."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any


class Database(ABC):
    """One connection to a database; its methods may be called from any thread, one at a time.

    Attributes:
        place: where the database is, for people; without any secret.
        engine: what runs the statements, for people.
        sessions: how many connections were opened so far: another one may lead to another database.
    """

    place: str
    engine: str
    sessions: int = 0

    @abstractmethod
    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows."""

    def run_all(self, statements: Sequence[str]) -> None:
        """Run statements of the open transaction, until one fails."""
        for statement in statements:
            self.rows(statement)

    def value(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """Return the first value of the first row, or None."""
        rows = self.rows(sql, values)
        return rows[0][0] if rows else None

    @abstractmethod
    def view(self) -> AbstractContextManager[None]:
        """Read everything inside from one committed state."""

    @abstractmethod
    def writing(self, *, brief: bool = False) -> AbstractContextManager[None]:
        """Commit everything done inside, or nothing.

        Args:
            brief: what is done can be done later: a server that is silent is not waited for.
        """

    @abstractmethod
    def about(self) -> dict[str, Any]:
        """Return what the database is, for the preflight."""

    def changes_seen(self) -> Any:
        """Return a number that other connections' commits change; None where there is none."""
        return None

    def check_access(self) -> None:  # noqa: B027 - a default, not a gap
        """Check that nobody uses the database in a way that this connection would not see.

        Raises:
            RetryableError: somebody does.
        """

    def replaced(self) -> bool:
        """Return whether another database is known to be in this one's place."""
        return False

    @contextmanager
    def replacement(self) -> Iterator[None]:
        """Go on with the database that took the place if nothing inside fails."""
        yield

    def hurry(self) -> None:  # noqa: B027 - a default, not a gap
        """Break off what is under way, and wait only a moment for each statement from now on.

        Called by any thread, before all is closed.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the connection. Safe to call twice; the next statement opens it again."""


def quoted(name: str) -> str:
    """Return a name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'
