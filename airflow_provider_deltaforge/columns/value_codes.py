"""Which values the rows of columns with few different ones have, as numbers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Codes = npt.NDArray[np.intp]


def codes(column: pa.DictionaryArray) -> Codes:
    """Return each row's index in the dictionary; the dictionary's length stands for null."""
    indices = column.indices
    if indices.null_count:
        indices = pc.fill_null(indices, len(column.dictionary))
    return np.asarray(indices).astype(np.intp)


def combinations(
    columns: Sequence[pa.DictionaryArray | pa.BooleanArray],
) -> tuple[Codes, list[tuple[Any, ...]]]:
    """Number the combinations of values that occur.

    Returns:
        For every row the ordinal of its combination, and for every ordinal one value of each
        column, ``None`` for null.
    """
    dictionaries = [
        column if isinstance(column, pa.DictionaryArray) else column.dictionary_encode()
        for column in columns
    ]
    values = [[*column.dictionary.to_pylist(), None] for column in dictionaries]
    sizes = [len(own) for own in values]
    mixed = np.ravel_multi_index([codes(column) for column in dictionaries], sizes)
    size = int(np.prod(sizes))
    # Counting beats sorting while the table of counts is not much larger than the batch.
    if size <= max(4096, 4 * len(mixed)):
        seen = np.flatnonzero(np.bincount(mixed, minlength=size))
        ordinal = np.zeros(size, np.intp)
        ordinal[seen] = np.arange(len(seen))
        combined = ordinal[mixed]
    else:
        seen, combined = np.unique(mixed, return_inverse=True)
    places = zip(values, np.unravel_index(seen, sizes), strict=True)
    found = [[own[at] for at in place.tolist()] for own, place in places]
    return combined, list(zip(*found, strict=True))
