"""How a column's values lie in the log: the kinds, and a column's description for the kernels."""

from collections.abc import Sequence
from typing import Any

import numpy as np

# The kinds, and what their two or three parameters mean.
INT = 0  # bytes, unsigned
FLOAT, DOUBLE = 1, 2
DECIMAL = 3  # precision, scale, 1 for a JSON number and 0 for a string
DATE = 4
TIME, DATETIME, TIMESTAMP = 5, 6, 7  # fraction digits
YEAR = 8
BIT = 9  # bits
ENUM, SET = 10, 11  # bytes, first label, label count
TEXT = 12  # bytes of the length prefix, charset
BINARY = 13  # bytes of the length prefix, bytes to pad to with zeros
JSON, GEOMETRY = 14, 15  # bytes of the length prefix
UUID, INET = 16, 17  # bytes of the length prefix, bytes of the value
OLD_TIMESTAMP, OLD_TIME, OLD_DATETIME = 18, 19, 20  # as MySQL 5.5 and MariaDB 5.3 stored them

# A column's fields: kind and parameters, the bytes of a value (0: they stand in front of it), where
# its ``,"name":`` begins and ends among the names, and its role.
KIND, P1, P2, P3, SIZE, NAME, NAME_STOP, ROLE = range(8)
FIELDS = 8

# Roles: a hidden column is read and not delivered; of a computed one the log may lack a value that
# changed; a value of the last kind is NULL where the log of an insert lacks it.
PLAIN, HIDDEN, COMPUTED, NULL_BY_DEFAULT = range(4)


_OLD_SIZES = {OLD_TIMESTAMP: 4, OLD_TIME: 3, OLD_DATETIME: 8}


def described(
    columns: Sequence[tuple[int, int, int, int]], name_ends: Any, roles: Sequence[int]
) -> Any:
    """Return columns as the kernels read them, int64, ``FIELDS`` each, one behind the other.

    Args:
        columns: (kind, p1, p2, p3) each.
        name_ends: int64 per column and one, where each name begins and the last one ends.
        roles: one per column.
    """
    table = np.zeros((len(columns), FIELDS), np.int64)
    for i, (kind, p1, p2, p3) in enumerate(columns):
        size = value_size(kind, p1, p2)
        table[i] = (kind, p1, p2, p3, size, name_ends[i], name_ends[i + 1], roles[i])
    return table.reshape(-1)


def value_size(kind: int, p1: int, p2: int) -> int:
    """Return the bytes of a value, 0 if every value has its own length."""
    if kind in _OLD_SIZES:
        return _OLD_SIZES[kind]
    if kind >= TEXT:
        return 0
    if kind == DECIMAL:
        return _digit_bytes(p1 - p2) + _digit_bytes(p2)
    fraction = (p1 + 1) // 2
    return {
        FLOAT: 4,
        DOUBLE: 8,
        DATE: 3,
        TIME: 3 + fraction,
        DATETIME: 5 + fraction,
        TIMESTAMP: 4 + fraction,
        YEAR: 1,
        BIT: (p1 + 7) // 8,
    }.get(kind, p1)


def _digit_bytes(digits: int) -> int:
    """Return the bytes of ``digits`` decimal digits: nine take four."""
    return digits // 9 * 4 + (digits % 9 + 1) // 2
