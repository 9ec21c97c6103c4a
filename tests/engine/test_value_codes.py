"""Columns with few values: what all rows share stands there once."""

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_deltaforge.columns.row_texts import chosen_from, join
from airflow_provider_deltaforge.columns.value_codes import (
    VARIED,
    only_value,
    repeated,
    shared_column,
)

VALUES = pa.array(["c", "u", "d"])


@pytest.mark.parametrize(
    ("numbers", "only"), [([1, 1, 1], "u"), ([0], "c"), ([0, 2, 0], VARIED), ([], VARIED)]
)
def test_a_value_that_all_rows_share_is_the_only_one(numbers, only):
    column = shared_column(np.array(numbers, np.int32), VALUES)

    assert column.to_pylist() == [VALUES[number].as_py() for number in numbers]
    assert only_value(column) == only


@pytest.mark.parametrize("count", [0, 1, 4096, 4097, 20_000])
def test_a_text_is_repeated_for_any_number_of_rows(count):
    assert repeated("shop", count).to_pylist() == ["shop"] * count


@pytest.mark.parametrize(
    ("texts", "column", "expected"),
    [
        ([b"x"], ["a", "a"], [b"x", b"x"]),
        ([b""], ["a", "a"], [b"", b""]),
        ([None], ["a", "a"], [b"null", b"null"]),
        ([b"x"], ["a", None], [b"x", b"x"]),
        ([b"x", b"y"], ["a", None], [b"x", b"y"]),
    ],
)
def test_one_text_for_all_rows_reads_like_several(texts, column, expected):
    piece = chosen_from(pa.array(texts, pa.binary()), pa.array(column).dictionary_encode())

    assert join([b"<", piece, b">"], 2).to_pylist() == [b"<" + text + b">" for text in expected]
