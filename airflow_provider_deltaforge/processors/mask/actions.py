"""What becomes of masked values. Each different value of a batch is worked on once."""

import hmac
from collections.abc import Callable
from functools import partial

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.columns import json_fields as j
from airflow_provider_deltaforge.columns.json_strings import quoted
from airflow_provider_deltaforge.columns.marks import UNCHANGED
from airflow_provider_deltaforge.processors.mask.settings import MaskRule
from airflow_provider_deltaforge.processors.mask.tokens import Tokens

_HASH_USE, _TOKEN_USE = b"deltaforge mask: hash", b"deltaforge mask: tokenise"

Action = Callable[[pa.BinaryArray], pa.BinaryArray]
"""Takes distinct values as JSON text, none of them null; returns what is put in their places."""


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
