"""Kernels from one row image to its JSON text."""

from typing import Any, NamedTuple

import numpy as np

from airflow_provider_deltaforge.sources.json_text import kernel, put_null, put_words
from airflow_provider_deltaforge.sources.mysql.column_kernel import OVERRUN, put_value, value_stop
from airflow_provider_deltaforge.sources.mysql.column_kinds import (
    FIELDS,
    KIND,
    NAME,
    NAME_STOP,
    P1,
    P2,
    P3,
)


class PlanArrays(NamedTuple):
    """Everything the kernel knows about the tables of a chunk, one behind the other.

    Attributes:
        first: int64 per table + 1, the ordinal of its first column.
        columns: int64, the columns' descriptions, see ``column_kinds``.
        names: uint8, ``,"name":`` of each column, and some bytes behind the last.
        labels: uint8, escaped enum and set labels, and some bytes behind the last.
        label_offsets: int64 per label + 1.
        key_first: int64 per table + 1, its first entry in ``key_columns``.
        key_columns: int64, column indexes of the primary keys, in key order.
        captured: bool per table.
        fixed: int64 per table, the bytes of a row's JSON that do not depend on its length.
        charsets: uint32, see ``charsets.table_of``.
    """

    first: Any
    columns: Any
    names: Any
    labels: Any
    label_offsets: Any
    key_first: Any
    key_columns: Any
    captured: Any
    fixed: Any
    charsets: Any


# The same as pointers, in the order in which the kernels below take them.
COLUMNS, NAMES, LABELS, LABEL_OFFSETS, CHARSETS, KEY_COLUMNS = range(6)


@kernel
def skip_image(src, pos, stop, columns, first, count, present):
    """Return the offset behind a row image; above ``stop`` if the image is damaged.

    ``present`` is the offset of the event's bitmap of columns that its images have, ``first`` and
    ``count`` are the table's columns in ``columns``.
    """
    nulls = pos
    there = 0
    for i in range(count):
        there += (src[present + (i >> 3)] >> (i & 7)) & 1
    pos += (there + 7) >> 3
    bit = 0
    for i in range(count):
        if (src[present + (i >> 3)] >> (i & 7)) & 1 == 0:
            continue
        if pos > stop:
            return pos
        if (src[nulls + (bit >> 3)] >> (bit & 7)) & 1 == 0:
            pos = value_stop(src, pos, stop, columns, (first + i) * FIELDS)
        bit += 1
    return pos


@kernel
def skip_row(src, pos, stop, columns, first, count, is_update, present):
    """Return the offset behind a row; both images of an update."""
    pos = skip_image(src, pos, stop, columns, first, count, present)
    if is_update and pos <= stop:
        pos = skip_image(src, pos, stop, columns, first, count, present + ((count + 7) >> 3))
    return pos


@kernel
def put_image(out, at, src, pos, stop, tables, first, count, spans):
    """Write a row image as a JSON object.

    Args:
        tables: pointers to the plans' arrays, ``COLUMNS`` to ``KEY_COLUMNS``.
        first: the table's first column; it has ``count``.
        spans: int64, receives where each value's text begins and ends in ``out``.

    Returns:
        (new offset or the negated error, offset behind the image, or the failing column).
    """
    columns, names = tables[COLUMNS], tables[NAMES]
    labels, label_offsets, charsets = tables[LABELS], tables[LABEL_OFFSETS], tables[CHARSETS]
    nulls = pos
    begin = at
    pos += (count + 7) >> 3
    if pos > stop:
        return np.int64(-OVERRUN), np.int64(0)
    for i in range(count):
        c = (first + i) * FIELDS
        at = put_words(out, at, names, columns[c + NAME], columns[c + NAME_STOP])
        spans[2 * i] = at
        if (src[nulls + (i >> 3)] >> (i & 7)) & 1:
            at = put_null(out, at)
        else:
            after = value_stop(src, pos, stop, columns, c)
            if after > stop:
                return np.int64(-OVERRUN), np.int64(i)
            kind, p1, p2, p3 = columns[c + KIND], columns[c + P1], columns[c + P2], columns[c + P3]
            at = put_value(
                out, at, src, pos, after, kind, p1, p2, p3, labels, label_offsets, charsets
            )
            if at < 0:
                return at, np.int64(i)
            pos = after
        spans[2 * i + 1] = at
    # The first name's comma.
    out[begin] = 123
    out[at] = 125
    return at + 1, pos


@kernel
def put_key(out, at, image, spans, tables, first, key, key_stop):
    """Write the primary key as a JSON object, from the values of an image just written.

    Its columns are the entries ``key`` to ``key_stop`` of ``KEY_COLUMNS``.
    """
    columns, names, key_columns = tables[COLUMNS], tables[NAMES], tables[KEY_COLUMNS]
    begin = at
    for k in range(key, key_stop):
        i = key_columns[k]
        c = (first + i) * FIELDS
        at = put_words(out, at, names, columns[c + NAME], columns[c + NAME_STOP])
        at = put_words(out, at, image, spans[2 * i], spans[2 * i + 1])
    out[begin] = 123
    out[at] = 125
    return at + 1
