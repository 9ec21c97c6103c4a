"""The kernels' buffers as Arrow columns, without a copy."""

from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.errors import FatalError

_TEXT_MAX = 2**31 - 1


def binary_column(data: Any, offsets: Any, count: int, valid: Any) -> pa.BinaryArray:
    """Return ``count`` binary values that share the kernel's buffer.

    Args:
        data: uint8.
        offsets: int64, at least ``count`` and one.
        count: of values.
        valid: bool per value; False is null.

    Raises:
        FatalError: together they are larger than an Arrow column can be.
    """
    size = int(offsets[count])
    if size > _TEXT_MAX:
        raise FatalError(
            f"{size} bytes of JSON in one batch: a row is too large to be delivered; leave its "
            "table out of 'tables'"
        )
    missing = count - int(np.count_nonzero(valid))
    mask = pa.py_buffer(np.packbits(valid, bitorder="little")) if missing else None
    ends = pa.py_buffer(offsets[: count + 1].astype(np.int32))
    return pa.Array.from_buffers(
        pa.binary(), count, [mask, ends, pa.py_buffer(data[:size])], missing
    )
