"""What becomes of masked values. Each different value of a batch is worked on once."""

import hmac
from collections.abc import Callable
from functools import partial

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.columns import json_fields
from airflow_provider_deltaforge.columns import json_fields as j
from airflow_provider_deltaforge.columns.binary_columns import column_of, parts_of
from airflow_provider_deltaforge.columns.json_strings import quoted
from airflow_provider_deltaforge.columns.marks import UNCHANGED
from airflow_provider_deltaforge.processors.mask.settings import MaskRule
from airflow_provider_deltaforge.processors.mask.token_kernel import (
    LIKE_MAX,
    OPAQUE_BYTES,
    put_tokens,
)

_HASH_USE, _TOKEN_USE = b"deltaforge mask: hash", b"deltaforge mask: tokenise"

Action = Callable[[pa.BinaryArray], pa.BinaryArray]
"""Takes distinct values as JSON text, none of them null; returns what is put in their places."""

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


class Actions:
    """What rules do to values.

    Args:
        rules: of the document.
        secret: what hashes and tokens are made with.
    """

    def __init__(self, rules: tuple[MaskRule, ...], secret: str | None) -> None:
        self._hash: Action | None = None
        tokens = None
        if secret is not None:
            self._hash = partial(_hashed, hmac.digest(secret.encode(), _HASH_USE, "sha256"))
            if any(rule.action == "tokenise" for rule in rules):
                tokens = Tokens(hmac.digest(secret.encode(), _TOKEN_USE, "sha256"))
        self._images = [self._of(rule, tokens) for rule in rules]
        self._of_keys = [
            image if rule.action in {"hash", "tokenise"} else self._hash
            for rule, image in zip(rules, self._images, strict=True)
        ]

    def of_image(self, rule: int) -> Action:
        """Return what a rule does to values in row images."""
        return self._images[rule]

    def of_key(self, rule: int) -> Action | None:
        """Return what a rule does in keys, where different values stay different."""
        return self._of_keys[rule]

    def _of(self, rule: MaskRule, tokens: Tokens | None) -> Action:
        if rule.action == "hash" and self._hash is not None:
            return self._hash
        if rule.action == "tokenise" and tokens is not None:
            return tokens
        if rule.action == "truncate" and rule.length is not None:
            return partial(_truncated, rule.length)
        return partial(_redacted, orjson.dumps(rule.replacement))


def applied(action: Action, values: pa.BinaryArray) -> pa.BinaryArray:
    """Return what an action makes of values given as JSON text; null stays null."""
    coded = values.dictionary_encode()
    distinct = coded.dictionary
    spans = j.locate(distinct, ())
    # Neither is a value that anybody could learn.
    kept = np.asarray(pc.equal(distinct, UNCHANGED)) | (j.kinds(distinct, spans) == j.NULL)
    new = action(distinct)
    if kept.any():
        new = pc.if_else(pa.array(kept), distinct, new)
    return new.take(coded.indices)


def _redacted(replacement: bytes, values: pa.BinaryArray) -> pa.BinaryArray:
    return pa.array([replacement], pa.binary()).take(pa.array(np.zeros(len(values), np.int32)))


def _hashed(key: bytes, values: pa.BinaryArray) -> pa.BinaryArray:
    texts = j.as_text(values).cast(pa.binary()).to_pylist()
    digests = [hmac.digest(key, text or b"", "sha256").hex() for text in texts]
    return pa.array([f'"{digest}"'.encode() for digest in digests], pa.binary())


def _truncated(length: int, values: pa.BinaryArray) -> pa.BinaryArray:
    return quoted(pc.utf8_slice_codeunits(j.as_text(values), 0, length))
