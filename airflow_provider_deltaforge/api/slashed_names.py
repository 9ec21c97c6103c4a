"""Names in paths that may hold slashes: tables', and ids of copies that Airflow's tasks ask for.

A caller writes a slash within a name as ``%2F``, but servers decode it before any route sees it, so
a route that shall take such a name has ``{name:slashed}``. It also takes whatever follows: a route
that has more behind the name is added before the one that ends with it.
"""

from starlette.convertors import Convertor, register_url_convertor


class SlashedName(Convertor[str]):
    """One character or more, of any kind.

    Starlette's own ``path`` also takes nothing, so ``/snapshots/`` would be a copy without an id
    and lead to ``/snapshots`` no more; and it takes no line feed, which a table's name may hold.
    """

    regex = "(?s:.+)"

    def convert(self, value: str) -> str:
        """Return the name as it is."""
        return value

    def to_string(self, value: str) -> str:
        """Return the name as it is."""
        return value


def register() -> None:
    """Make ``slashed`` known to routes; to be called before they are added."""
    register_url_convertor("slashed", SlashedName())
