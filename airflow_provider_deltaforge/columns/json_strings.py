"""Columns of text as JSON strings."""

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.columns.binary_columns import column_of, parts_of
from airflow_provider_deltaforge.columns.row_text_kernel import put_strings


def quoted(texts: pa.StringArray) -> pa.BinaryArray:
    """Return each text as a JSON string, with its quotes; null stays null."""
    count = len(texts)
    data, offsets, present = parts_of(texts)
    size = int(offsets[count]) - int(offsets[0])
    # Room for the hardest text; pages that nothing is written to cost nothing.
    out, ends = np.empty(6 * size + 32 * count + 16, np.uint8), np.empty(count + 1, np.int32)
    put_strings(out, ends, data, offsets)
    return column_of(out[: ends[-1]].copy(), ends, present)
