"""Columns become a batch of change events; what is no such column is refused, not misread."""

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_deltaforge.columns.value_codes import repeated
from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA
from airflow_provider_deltaforge.sources.shared.change_rows import change_rows, transaction_ends


def columns_of(count):
    return {
        "op": repeated("c", count),
        "db": repeated("shop", count),
        "table": repeated("orders", count),
        "after": pa.array([b'{"id":%d}' % number for number in range(count)], pa.binary()),
        "ts_ms": pa.array(range(count), pa.int64()),
        "tx": pa.array([0] * count, pa.int32()),
        "row": pa.array(range(count), pa.int32()),
        "tx_end": pa.array([number == count - 1 for number in range(count)], pa.bool_()),
        "event_id": pa.array([bytes(16)] * count, pa.binary(16)),
    }


@pytest.mark.parametrize("count", [0, 1, 256, 257, 5000])
def test_what_is_missing_is_null_in_batches_of_any_size(count):
    columns = columns_of(count)
    for _ in range(2):  # Short columns of nulls are kept from the first one.
        rows = change_rows(count, columns)
        rows.validate(full=True)
        assert rows.schema.equals(CHANGE_SCHEMA, check_metadata=True)
        for name in CHANGE_SCHEMA.names:
            wanted = columns.get(name, pa.nulls(count, CHANGE_SCHEMA.field(name).type))
            assert rows[name].equals(wanted), name


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("after", pa.array(["text", "text"], pa.utf8())),
        ("tx", pa.array([0, 0], pa.int64())),
        ("key", pa.array([b"1"], pa.binary())),
        ("op", pa.array(["c", "c"], pa.utf8())),
    ],
)
def test_a_column_of_another_type_or_length_is_refused(name, column):
    with pytest.raises(TypeError, match=name):
        change_rows(2, {**columns_of(2), name: column})


@pytest.mark.parametrize(
    ("transactions", "ends"), [([], []), ([0], [1]), ([0, 0, 1, 3, 3], [0, 1, 1, 0, 1])]
)
def test_the_last_row_of_each_transaction_is_marked(transactions, ends):
    assert transaction_ends(np.array(transactions, np.int32)).tolist() == ends
