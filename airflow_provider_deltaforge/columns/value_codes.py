"""Columns with few different values: which of them the rows have, as numbers."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.columns.binary_columns import number_column
from airflow_provider_deltaforge.columns.short_columns import kept_if_short

_ZEROS_MAX = 4096
_ZEROS = pa.py_buffer(bytes(4 * _ZEROS_MAX))

Codes = npt.NDArray[np.intp]


def dictionary_column(numbers: Any, values: pa.Array, missing: Any = None) -> pa.DictionaryArray:
    """Return ``values[number]`` for each number, and null where ``missing`` is True."""
    if missing is not None and np.count_nonzero(missing):
        indices = pa.array(numbers, pa.int32(), mask=missing)
    else:
        indices = number_column(np.ascontiguousarray(numbers, np.int32), pa.int32())
    return pa.DictionaryArray.from_arrays(indices, values)


def shared_column(numbers: Any, values: pa.Array) -> pa.DictionaryArray:
    """Return ``values[number]`` for each number; where all are the same, in a dictionary of one.

    Whoever needs a text for each value then makes one, and the same for all rows.
    """
    if all_same(numbers):
        return repeated(values[numbers[0]].as_py(), len(numbers))
    return dictionary_column(numbers, values)


def all_same(numbers: Any) -> bool:
    """Return whether there are numbers, and all are the same."""
    count = len(numbers)  # NumPy's all() and any() take three times as long for some numbers.
    return count > 0 and np.count_nonzero(numbers == numbers[0]) == count


@kept_if_short
def repeated(text: str, count: int) -> pa.DictionaryArray:
    """Return a column that holds one text in every row."""
    numbers = _ZEROS if count <= _ZEROS_MAX else pa.py_buffer(np.zeros(count, np.int32))
    indices = pa.Array.from_buffers(pa.int32(), count, [None, numbers])
    return pa.DictionaryArray.from_arrays(indices, _alone(text))


@lru_cache(maxsize=1024)
def _alone(text: str) -> pa.StringArray:
    return pa.array([text], pa.utf8())


def codes(column: pa.DictionaryArray) -> Codes:
    """Return each row's index in the dictionary; the dictionary's length stands for null."""
    indices = column.indices
    if indices.null_count:
        indices = pc.fill_null(indices, len(column.dictionary))
    return np.asarray(indices).astype(np.intp)


VARIED = object()


def only_value(column: pa.DictionaryArray) -> Any:
    """Return the value that every row has, None where all are null; ``VARIED`` if that is open."""
    if column.null_count:
        return None if column.null_count == len(column) else VARIED
    return column.dictionary[0].as_py() if len(column.dictionary) == 1 else VARIED


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
    # Most batches are of one table: what all rows share needs no numbers.
    whole = [only_value(column) for column in dictionaries]
    varied = [at for at, value in enumerate(whole) if value is VARIED]
    if not varied:
        count = len(dictionaries[0])
        return np.zeros(count, np.intp), [tuple(whole)] if count else []
    combined, found = _combinations([dictionaries[at] for at in varied])
    if len(varied) == len(whole):
        return combined, found
    filled = []
    for values in found:
        for at, value in zip(varied, values, strict=True):
            whole[at] = value
        filled.append(tuple(whole))
    return combined, filled


def _combinations(
    dictionaries: Sequence[pa.DictionaryArray],
) -> tuple[Codes, list[tuple[Any, ...]]]:
    values = [[*column.dictionary.to_pylist(), None] for column in dictionaries]
    sizes = [len(own) for own in values]
    mixed = codes(dictionaries[0])
    if len(dictionaries) > 1:
        mixed = np.ravel_multi_index([mixed, *map(codes, dictionaries[1:])], sizes)
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
