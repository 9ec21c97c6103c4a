"""Messages as lines: what is written of values that hold line breaks, or are none."""

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_deltaforge.events.message import Messages
from airflow_provider_deltaforge.sinks.lines import json_lines


def messages(values, topics=("a", "b")):
    count = len(values)
    names = pa.array([topics[n % len(topics)] for n in range(count)], pa.utf8())
    return Messages(
        topics=names.dictionary_encode(),
        keys=pa.nulls(count, pa.binary()),
        values=pa.array(values, pa.binary()),
        headers=None,
        event_ids=pa.array([bytes(16)] * count, pa.binary(16)),
        event_rows=pa.array(np.arange(count, dtype=np.int32)),
    )


@pytest.mark.parametrize(
    ("values", "lines"),
    [
        ([b'{"a":1}', b"2"], b'{"a":1}\n2\n'),
        ([b'{"a":\n1}', b"[\r\n2]"], b'{"a": 1}\n[  2]\n'),
        ([None, b"[\n]", b""], b"null\n[ ]\n\n"),
        ([None, None], b"null\nnull\n"),
        ([], b""),
    ],
)
def test_each_message_is_a_line(values, lines):
    assert json_lines(messages(values)) == lines


def test_topics_stand_before_values():
    assert json_lines(messages([b"1", b"2", None]), with_topic=True) == b"a\t1\nb\t2\na\tnull\n"


def test_a_part_of_a_batch_has_its_own_lines_only():
    part = messages([b"1\n", b"2", b"3"]).take(pa.array([1, 2]))
    sliced = messages(pa.array([b"1\n", b"2", b"3"], pa.binary()).slice(1, 2).to_pylist())

    assert json_lines(part) == b"2\n3\n"
    assert json_lines(sliced) == b"2\n3\n"
