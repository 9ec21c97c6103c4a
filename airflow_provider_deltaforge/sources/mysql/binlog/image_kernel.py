"""Kernels from one row image to its JSON text."""

from typing import Any, NamedTuple

import numpy as np

from airflow_provider_deltaforge.columns.json_text_kernel import (
    kernel,
    put_bytes,
    put_null,
    put_words,
)
from airflow_provider_deltaforge.columns.marks import UNCHANGED
from airflow_provider_deltaforge.sources.mysql.binlog.column_kernel import (
    OVERRUN,
    put_value,
    value_stop,
)
from airflow_provider_deltaforge.sources.mysql.binlog.column_kinds import (
    COMPUTED,
    FIELDS,
    HIDDEN,
    JSON,
    KIND,
    NAME,
    NAME_STOP,
    NULL_BY_DEFAULT,
    P1,
    P2,
    P3,
    ROLE,
)
from airflow_provider_deltaforge.sources.mysql.binlog.framing_kernel import PARTIAL, UPDATE
from airflow_provider_deltaforge.sources.mysql.binlog.value_kernel import big

_UNCHANGED = np.frombuffer(UNCHANGED, np.uint8)

# What becomes of a column that an image lacks: left out, taken from the image before, or refused.
LEFT_OUT, FILLED, REFUSED = range(3)
# Why a partial image cannot be written, beside the reasons of ``column_kernel``.
ABSENT_VALUE, ABSENT_KEY = 3, 7

_MICROS_MAX = 999_999
_SECONDS_MAX, _SECONDS_MAX_64 = 0x7FFFFFFF, 0xFFFFFFFF


class PlanArrays(NamedTuple):
    """Everything the kernel knows about the tables of a segment, one behind the other.

    Attributes:
        first: int64 per table + 1, the ordinal of its first column.
        columns: int64, the columns' descriptions, see ``column_kinds``.
        names: uint8, ``,"name":`` of each column, and some bytes behind the last.
        labels: uint8, escaped enum and set labels, and some bytes behind the last.
        label_offsets: int64 per label + 1.
        key_first: int64 per table + 1, its first entry in ``key_columns``.
        key_columns: int64, column indexes of the primary keys, in key order.
        captured: bool per table.
        period_end: int64 per table, the column with the end of a row's period; -1: none.
        hides: bool per table, some of its columns or rows are not delivered.
        fixed: int64 per table, the bytes of a row's JSON that do not depend on its values.
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
    period_end: Any
    hides: Any
    fixed: Any
    charsets: Any


# The same as pointers, in the order in which the kernels below take them.
COLUMNS, NAMES, LABELS, LABEL_OFFSETS, CHARSETS, KEY_COLUMNS = range(6)


@kernel
def _skip_columns(src, pos, stop, columns, first, count, present, until):
    """Return the offset behind the first ``until`` columns of an image; see ``skip_image``."""
    nulls = pos
    there = 0
    for i in range(count):
        there += (src[present + (i >> 3)] >> (i & 7)) & 1
    pos += (there + 7) >> 3
    bit = 0
    for i in range(until):
        if (src[present + (i >> 3)] >> (i & 7)) & 1 == 0:
            continue
        if pos > stop:
            return pos
        if (src[nulls + (bit >> 3)] >> (bit & 7)) & 1 == 0:
            pos = value_stop(src, pos, stop, columns, (first + i) * FIELDS)
        bit += 1
    return pos


@kernel
def skip_image(src, pos, stop, columns, first, count, present):
    """Return the offset behind a row image; above ``stop`` if the image is damaged.

    ``present`` is the offset of the event's bitmap of columns that its images have, ``first`` and
    ``count`` are the table's columns in ``columns``.
    """
    return _skip_columns(src, pos, stop, columns, first, count, present, count)


@kernel
def is_whole(src, present, count):
    """Return whether an event's images have all of a table's columns."""
    for i in range(count):
        if (src[present + (i >> 3)] >> (i & 7)) & 1 == 0:
            return False
    return True


@kernel
def is_whole_but_hidden(src, present, columns, first, count):
    """Return whether an event's images have all of a table's columns that are delivered."""
    for i in range(count):
        is_present = (src[present + (i >> 3)] >> (i & 7)) & 1
        if is_present == 0 and columns[(first + i) * FIELDS + ROLE] != HIDDEN:
            return False
    return True


@kernel
def _behind_options(src, pos, columns, first, count):
    """Return the offset after the options of a partial update's JSON columns."""
    some = src[pos] & 1
    pos += 1
    if some:
        documents = 0
        for i in range(count):
            documents += 1 if columns[(first + i) * FIELDS + KIND] == JSON else 0
        pos += (documents + 7) >> 3
    return pos


@kernel
def skip_row(src, pos, stop, columns, first, count, kind, present):
    """Return the offset behind a row; both images of an update."""
    pos = skip_image(src, pos, stop, columns, first, count, present)
    if pos <= stop and kind in (UPDATE, PARTIAL):
        if kind == PARTIAL and pos < stop:
            pos = _behind_options(src, pos, columns, first, count)
        pos = skip_image(src, pos, stop, columns, first, count, present + ((count + 7) >> 3))
    return pos


@kernel
def is_current(src, pos, stop, columns, first, count, present, end, otherwise):
    """Return whether an image is that of a current row of a system-versioned table.

    ``end`` is its column ROW END, a TIMESTAMP(6): the highest one there is means current, and
    servers differ in which that is. ``otherwise`` is the answer where the image lacks it.
    """
    if (src[present + (end >> 3)] >> (end & 7)) & 1 == 0:
        return otherwise
    pos = _skip_columns(src, pos, stop, columns, first, count, present, end)
    if pos + 7 > stop:
        return otherwise
    seconds = big(src, pos, 4) & 0xFFFFFFFF
    highest = seconds in (_SECONDS_MAX, _SECONDS_MAX_64)
    return highest and big(src, pos + 4, 3) == _MICROS_MAX


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
def put_partial_image(
    out, at, src, pos, stop, tables, first, count, present, absent, spans, base, base_spans
):
    """Write an image that lacks columns, or has some that are not delivered.

    Args:
        present: offset of the event's bitmap of the columns that the image has.
        absent: what becomes of the others: ``LEFT_OUT``, ``FILLED`` or ``REFUSED``.
        spans: as of ``put_image``; -1 for columns that are not written.
        base: where the image before was written.
        base_spans: the spans of it.

    Returns:
        As ``put_image``.
    """
    columns, names = tables[COLUMNS], tables[NAMES]
    labels, label_offsets, charsets = tables[LABELS], tables[LABEL_OFFSETS], tables[CHARSETS]
    nulls = pos
    begin = at
    there = 0
    for i in range(count):
        there += (src[present + (i >> 3)] >> (i & 7)) & 1
    pos += (there + 7) >> 3
    if pos > stop:
        return np.int64(-OVERRUN), np.int64(0)
    bit = 0
    for i in range(count):
        c = (first + i) * FIELDS
        is_present = (src[present + (i >> 3)] >> (i & 7)) & 1
        is_null, start, after = True, pos, pos
        if is_present:
            is_null = (src[nulls + (bit >> 3)] >> (bit & 7)) & 1 == 1
            bit += 1
            if not is_null:
                after = value_stop(src, pos, stop, columns, c)
                if after > stop:
                    return np.int64(-OVERRUN), np.int64(i)
                pos = after
        spans[2 * i] = spans[2 * i + 1] = -1
        if columns[c + ROLE] == HIDDEN or (not is_present and absent == LEFT_OUT):
            continue
        role = columns[c + ROLE]
        if not is_present and absent == REFUSED and role == NULL_BY_DEFAULT:
            is_present, is_null = 1, True
        if not is_present and (absent == REFUSED or role == COMPUTED):
            return np.int64(-ABSENT_VALUE), np.int64(i)
        at = put_words(out, at, names, columns[c + NAME], columns[c + NAME_STOP])
        spans[2 * i] = at
        if not is_present and base_spans[2 * i] >= 0:
            at = put_words(out, at, base, base_spans[2 * i], base_spans[2 * i + 1])
        elif not is_present:
            at = put_bytes(out, at, _UNCHANGED, 0, len(_UNCHANGED))
        elif is_null:
            at = put_null(out, at)
        else:
            kind, p1, p2, p3 = columns[c + KIND], columns[c + P1], columns[c + P2], columns[c + P3]
            at = put_value(
                out, at, src, start, after, kind, p1, p2, p3, labels, label_offsets, charsets
            )
            if at < 0:
                return at, np.int64(i)
        spans[2 * i + 1] = at
    # The first name's comma.
    at = max(at, begin + 1)
    out[begin] = 123
    out[at] = 125
    return at + 1, pos


@kernel
def put_absent_names(out, at, src, present, tables, first, count, base_spans):
    """Write the names of the columns without a value as a JSON list; nothing if there are none.

    The arguments are those of ``put_partial_image``, whose image takes more room.
    """
    columns, names = tables[COLUMNS], tables[NAMES]
    begin = at
    for i in range(count):
        c = (first + i) * FIELDS
        is_present = (src[present + (i >> 3)] >> (i & 7)) & 1
        if is_present or columns[c + ROLE] == HIDDEN or base_spans[2 * i] >= 0:
            continue
        # Without the colon behind the name.
        at = put_words(out, at, names, columns[c + NAME], columns[c + NAME_STOP]) - 1
    if at == begin:
        return at
    # The first name's comma.
    out[begin] = 91
    out[at] = 93
    return at + 1


@kernel
def lacks_key(spans, tables, key, key_stop):
    """Return whether an image just written lacks a column of the primary key."""
    key_columns = tables[KEY_COLUMNS]
    for k in range(key, key_stop):
        if spans[2 * key_columns[k]] < 0:
            return True
    return False


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
