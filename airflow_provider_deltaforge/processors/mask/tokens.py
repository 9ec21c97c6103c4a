"""Tokens: values that look like what they stand for, digits for digits and letters for letters.

Over texts of one shape a token is a permutation: a Feistel network in the manner of NIST's FF1,
with SipHash as its round function. So different values never share a token, and joins over tokens
find what joins over the values would. It is no implementation of FF1, and what has few possible
values can be guessed from how often each occurs.
"""

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.columns import json_fields
from airflow_provider_deltaforge.columns.binary_columns import column_of, parts_of
from airflow_provider_deltaforge.processors.mask.token_kernel import (
    LIKE_MAX,
    OPAQUE_BYTES,
    put_tokens,
)

_ESCAPED_MAX = 6
"""Bytes of one character in JSON text, if it is ASCII."""


class Tokens:
    """Makes tokens.

    Args:
        key: 32 bytes; others make other tokens.
    """

    def __init__(self, key: bytes) -> None:
        self._keys = np.frombuffer(key, "<u8")
        self(pa.array([b'"a1"'], pa.binary()))  # Compiled before rows are waiting.

    def __call__(self, values: pa.BinaryArray) -> pa.BinaryArray:
        """Return the token of each value, both as JSON text.

        A number and its text have the same characters. Texts beyond ASCII or ``LIKE_MAX``, those
        without a digit or letter, and all that is neither text nor number have no form to keep.
        """
        kinds = json_fields.kinds(values, json_fields.locate(values, ()))
        texts = parts_of(json_fields.as_text(values).cast(pa.binary()))
        alike = np.minimum(np.diff(texts.offsets).astype(np.int64), LIKE_MAX)
        room = _ESCAPED_MAX * int(alike.sum()) + OPAQUE_BYTES * len(values)
        data, offsets = np.empty(room, np.uint8), np.empty(len(values) + 1, np.int32)
        used = put_tokens(self._keys, texts.data, texts.offsets, kinds, data, offsets)
        return column_of(data[:used], offsets)
