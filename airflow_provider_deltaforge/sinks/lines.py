"""Messages as lines of JSON text."""

import re
from typing import Any

import pyarrow as pa

from airflow_provider_deltaforge.columns.binary_columns import parts_of
from airflow_provider_deltaforge.columns.row_text_kernel import holds_break
from airflow_provider_deltaforge.columns.row_texts import Piece, chosen_from, join, texts_of
from airflow_provider_deltaforge.events.message import Messages


def json_lines(messages: Messages, *, with_topic: bool = False) -> memoryview:
    r"""Return one line per message: its value, after its topic and a tab if asked for.

    A line break inside a JSON text can only be white space between two tokens (PostgreSQL keeps
    those of a ``json`` column), so it is written as a space. A tombstone is ``null``.
    """
    values = messages.values
    if holds_break(_content(values)):
        texts = (text and re.sub(rb"[\r\n]", b" ", text) for text in values.to_pylist())
        values = pa.array(texts, pa.binary())
    pieces: list[Piece] = [texts_of(values), b"\n"]
    if with_topic:
        topics = messages.topics
        names = topics.dictionary.cast(pa.utf8()).cast(pa.binary())
        pieces = [chosen_from(names, topics), b"\t", *pieces]
    return memoryview(_content(join(pieces, len(messages))))


def _content(texts: pa.BinaryArray) -> Any:
    """Return the bytes of texts, one behind the other (uint8)."""
    data, offsets, _ = parts_of(texts)
    return data[offsets[0] : offsets[-1]]
