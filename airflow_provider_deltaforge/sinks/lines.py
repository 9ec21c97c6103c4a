"""Messages as lines of JSON text."""

import re

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.events.message import Messages


def json_lines(messages: Messages, *, with_topic: bool = False) -> bytes:
    r"""Return one line per message: its value, after its topic and a tab if asked for.

    A line break inside a JSON text can only be white space between two tokens (PostgreSQL keeps
    those of a ``json`` column), so it is written as a space. A tombstone is ``null``.
    """
    values = pc.fill_null(messages.values, b"null").cast(pa.binary())
    whole = _content(values)  # Many times faster to search than value by value.
    if b"\n" in whole or b"\r" in whole:
        texts = [re.sub(rb"[\r\n]", b" ", text) for text in values.to_pylist()]
        values = pa.array(texts, pa.binary())
    if with_topic:
        topics = messages.topics.cast(pa.utf8()).cast(pa.binary())
        values = pc.binary_join_element_wise(topics, values, b"\t")
    lines = pc.binary_join_element_wise(values, b"\n", b"")
    return _content(lines)


def _content(texts: pa.BinaryArray) -> bytes:
    first = texts.buffers()[1]
    offsets = memoryview(first).cast("i")[texts.offset : texts.offset + len(texts) + 1]
    return bytes(memoryview(texts.buffers()[2])[offsets[0] : offsets[-1]])
