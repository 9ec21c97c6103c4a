"""Kinds of columns, as the kernels tell them apart: by how the server's text becomes JSON."""

TEXT = 0
"""Any text: a JSON string with escapes."""
PLAIN = 1
"""Text that never needs an escape (numeric, date, uuid): a JSON string."""
NUMBER = 2
"""Digits: as they are."""
FLOAT = 3
"""A number as it is; NaN and the infinities as strings."""
BOOL = 4
BYTEA = 5
TIMESTAMP = 6
TIMESTAMPTZ = 7
TIMETZ = 8
JSON = 9
BIT = 10
"""At most 64 binary digits: an unsigned number."""
BIT1 = 11
HSTORE = 12
ARRAY = 13
"""Elements of the kind that follows in the chain; the delimiter stands above the low byte."""
VECTOR = 14
"""``int2vector`` and ``oidvector``: numbers between spaces."""

ARRAYS_MAX = 2
"""Arrays in a chain: further ones, of domains over arrays of domains over arrays, are text."""
