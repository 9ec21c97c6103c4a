"""A change of a source's log as a decoder that is not ours understands it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final


class UnknownValue:
    """Stands for a value that another decoder leaves open; it is equal to any."""

    def __repr__(self) -> str:
        return "(unknown)"


UNKNOWN_VALUE: Final = UnknownValue()


@dataclass(frozen=True, slots=True)
class IndependentChange:
    """One row's change, in the shapes of our events.

    Attributes:
        tx: the source's own name of the transaction: a GTID, an xid; empty without one.
        table: full name.
        op: ``c``, ``u``, ``d``, ``t``; ``ddl`` for a statement; ``?`` for what it could not read.
        before: the former row by column; a value is JSON-able, a ``Decimal`` or ``UNKNOWN_VALUE``.
        after: the new row; None of a delete.
        text: the statement, or why it could not be read.
    """

    tx: str
    table: str
    op: str
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None
    text: str = ""
