from dataclasses import replace

import pyarrow as pa
import pytest

from airflow_provider_deltaforge.events.message import Messages


def messages(topics=("a", "b", "a"), keys=(b"1", None, b"3"), values=(b"x", None, b"z")):
    return Messages(
        topics=pa.array(topics).dictionary_encode(),
        keys=pa.array(keys, pa.binary()),
        values=pa.array(values, pa.binary()),
        headers=None,
        event_ids=pa.array([bytes([n]) * 16 for n in range(3)], pa.binary(16)),
        event_rows=pa.array(range(3), pa.int32()),
    )


def test_messages_rendered_again_are_the_same_whatever_the_order_of_the_dictionary():
    again = messages()
    codes, names = pa.array([1, 0, 1], pa.int32()), pa.array(["b", "a"])
    assert messages().same_as(replace(again, topics=pa.DictionaryArray.from_arrays(codes, names)))


@pytest.mark.parametrize(
    "other",
    [
        messages(topics=("a", "b", "b")),
        messages(keys=(b"1", b"2", b"3")),
        messages(values=(b"x", b"", b"z")),
        replace(messages(), event_ids=pa.array([bytes(16)] * 3, pa.binary(16))),
        messages().slice(0, 2),
    ],
    ids=["topics", "keys", "values", "event_ids", "fewer"],
)
def test_other_messages_are_not_the_same(other):
    assert not messages().same_as(other)


def test_a_part_keeps_every_column_and_headers_if_there_are_any():
    headers = pa.array([[("n", str(n))] for n in range(3)], pa.map_(pa.string(), pa.string()))
    whole = replace(messages(), headers=headers)
    for part in (whole.slice(1, 2), whole.take(pa.array([1, 2]))):
        assert len(part) == 2
        assert part.topics.to_pylist() == ["b", "a"]
        assert part.keys.to_pylist() == [None, b"3"]
        assert part.values.to_pylist() == [None, b"z"]
        assert part.headers.to_pylist() == [[("n", "1")], [("n", "2")]]
        assert part.event_ids.to_pylist() == [b"\x01" * 16, b"\x02" * 16]
        assert part.event_rows.to_pylist() == [1, 2]
    assert messages().take(pa.array([2, 0])).headers is None
