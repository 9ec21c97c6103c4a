"""From columns of messages to the bytes of Redis commands, without an object per message."""

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.columns.binary_columns import uuid_texts
from airflow_provider_deltaforge.events.message import Messages

_AT_ONCE = 1000
_BYTES_AT_ONCE = 2**20
_PAIR_BYTES = 8
"""What JSON puts around a header's name and text, at most."""
_ESCAPED_BYTES = 6
"""What JSON makes of one byte, at most."""

Sizes: TypeAlias = "np.typing.NDArray[np.int64]"


def part_sizes(messages: Messages) -> dict[str, Sizes]:
    """Return how many bytes each part of a message has; -1 where it has no value.

    Headers have at most so many; ``header_sizes`` knows, and makes a Python object of each.
    """
    names = _lengths(messages.topics.dictionary, 0)
    return {
        "value": _lengths(messages.values, -1),
        "key": _lengths(messages.keys, 0),
        "stream's name": names[np.asarray(messages.topics.indices)],
        "header list": _header_bytes(messages) * _ESCAPED_BYTES + 2,
    }


def header_sizes(messages: Messages) -> Sizes:
    """Return how many bytes the headers of each message have as JSON."""
    has_any = messages.headers is not None
    return _lengths(_header_texts(messages), 0) if has_any else _header_bytes(messages)


def spans(messages: Messages, first: int = 0) -> Iterator[tuple[int, int]]:
    """Yield the steps that messages are sent in: few enough, and small enough but for one alone.

    Args:
        messages: the batch.
        first: where the first step begins.
    """
    sizes = _lengths(messages.values, 0) + _lengths(messages.keys, 0) + _header_bytes(messages)
    ends = np.cumsum(sizes)
    count = len(messages)
    while first < count:
        before = int(ends[first - 1]) if first else 0
        fitting = int(np.searchsorted(ends, before + _BYTES_AT_ONCE, side="right"))
        last = max(first + 1, min(first + _AT_ONCE, fitting, count))
        yield first, last
        first = last


def commands(messages: Messages, max_len: int | None) -> memoryview:
    """Return one ``XADD`` per message, in order, as the server reads them.

    Args:
        messages: each with a value.
        max_len: about how many entries a stream keeps.
    """
    ids = uuid_texts(messages.event_ids)
    heads, tails = _heads_and_tails(messages, max_len)
    pieces = [heads, *_bulks(messages.values)]
    for name, texts in ((b"event_id", ids), (b"idempotency_key", ids), (b"df-key", None)):
        pieces += [b"\r\n" + _bulk(name), *_bulks(_keys(messages, ids) if texts is None else texts)]
    return _stretch([*pieces, b"\r\n", tails])


def streams(messages: Messages) -> tuple[list[str], pa.Int64Array]:
    """Return the streams that are written to, and which of them each message goes to."""
    codes, numbers = np.unique(np.asarray(messages.topics.indices), return_inverse=True)
    names = messages.topics.dictionary.take(pa.array(codes))
    return names.to_pylist(), pa.array(numbers, pa.int64())


def arguments(messages: Messages, numbers: pa.Int64Array) -> tuple[int, memoryview]:
    """Return what a script needs to know of each message, and how many bulk strings that is.

    Args:
        messages: each with a value.
        numbers: which of the script's keys each message's stream is.
    """
    ids = uuid_texts(messages.event_ids)
    digits = numbers.cast(pa.utf8()).cast(pa.binary())
    words = [digits, messages.values, ids, _keys(messages, ids)]
    if messages.headers is not None:
        words.append(_header_texts(messages))
    pieces = [piece for texts in words for piece in (*_bulks(texts), b"\r\n")]
    return len(words), _stretch(pieces)


def command(*words: bytes | str | int, more: int = 0) -> bytes:
    """Return one command, or its beginning if ``more`` arguments follow."""
    texts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % (len(texts) + more) + b"".join(map(_bulk, texts))


def _lengths(texts: pa.Array, missing: int) -> Sizes:
    sizes: Sizes = np.asarray(pc.fill_null(pc.binary_length(texts), missing), np.int64)
    return sizes


def _header_bytes(messages: Messages) -> Sizes:
    """Return about how many bytes the headers of each message have."""
    headers = messages.headers
    if headers is None:
        return np.zeros(len(messages), np.int64)
    each = _lengths(headers.keys, 0) + _lengths(headers.items, 0) + _PAIR_BYTES
    ends = np.append(0, np.cumsum(each))
    sizes: Sizes = np.diff(ends[np.asarray(headers.offsets)])
    return sizes


def _keys(messages: Messages, ids: pa.BinaryArray) -> pa.BinaryArray:
    """Return the key of each entry: the message's, or the event's id if that is empty."""
    keys = messages.keys
    empty = pc.equal(pc.fill_null(pc.binary_length(keys), 0), 0)
    return pc.if_else(empty, ids, keys) if pc.any(empty).as_py() else keys


def _heads_and_tails(messages: Messages, max_len: int | None) -> tuple[pa.BinaryArray, Any]:
    """Return each command up to the payload, and what follows the key."""
    trim = [] if max_len is None else [b"MAXLEN", b"~", b"%d" % max_len]
    names, numbers = streams(messages)
    heads = [
        command("XADD", name, *trim, b"*", b"event", more=7 + more)
        for more in (0, 2)
        for name in names
    ]
    if messages.headers is None:
        return pa.array(heads, pa.binary()).take(numbers), b""
    texts = _header_texts(messages)
    has = pc.greater(pc.binary_length(texts), 0)
    numbers = pc.add(numbers, pc.multiply(has.cast(pa.int64()), len(names)))
    tails = pc.binary_join_element_wise(_bulk(b"df-headers"), *_bulks(texts), b"\r\n", b"")
    return pa.array(heads, pa.binary()).take(numbers), pc.if_else(has, tails, b"")


def _header_texts(messages: Messages) -> pa.BinaryArray:
    """Return each message's headers as JSON, empty where it has none."""
    headers: Any = messages.headers
    texts = [orjson.dumps(dict(pairs)) if pairs else b"" for pairs in headers.to_pylist()]
    return pa.array(texts, pa.binary())


def _bulk(text: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(text), text)


def _bulks(texts: pa.BinaryArray) -> list[Any]:
    """Return pieces of bulk strings; the line's end is left to what follows."""
    lengths = pc.binary_length(texts).cast(pa.utf8()).cast(pa.binary())
    return [b"$", lengths, b"\r\n", texts]


def _stretch(pieces: list[Any]) -> memoryview:
    """Return pieces joined row by row, and all rows as one stretch of bytes."""
    whole = pc.binary_join_element_wise(*pieces, b"")
    offsets = np.frombuffer(whole.buffers()[1], np.int32)[whole.offset :][: len(whole) + 1]
    return memoryview(whole.buffers()[2])[offsets[0] : offsets[-1]]
