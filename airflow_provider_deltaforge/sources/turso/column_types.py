"""The column types of SQLite: its affinities, which a declared type's words decide.

An affinity says what becomes of a value that is stored, no more: any column may hold any value, and
a value's JSON follows from the value. Their Avro types are in ``encodings.avro.column_types``.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Affinity:
    """One affinity.

    Attributes:
        name: in lower case; it is the column's ``data_type``.
        words: a declared type that has one of them has the affinity.
        undeclared: a column without a type has it.
        whole_as_integers: whole numbers are stored as integers, and mean REAL.
    """

    name: str
    words: tuple[str, ...]
    undeclared: bool = False
    whole_as_integers: bool = False


AFFINITIES = (
    Affinity("integer", ("INT",)),
    Affinity("text", ("CHAR", "CLOB", "TEXT")),
    Affinity("blob", ("BLOB",), undeclared=True),
    Affinity("real", ("REAL", "FLOA", "DOUB"), whole_as_integers=True),
)
"""In the order in which SQLite looks for them."""
OTHERWISE = Affinity("numeric", ())

BY_NAME = {row.name: row for row in (*AFFINITIES, OTHERWISE)}


def affinity(declared: str) -> str:
    """Return the affinity of a column by its declared type."""
    text = declared.upper()
    for row in AFFINITIES:
        if any(word in text for word in row.words) or (row.undeclared and not text):
            return row.name
    return OTHERWISE.name
