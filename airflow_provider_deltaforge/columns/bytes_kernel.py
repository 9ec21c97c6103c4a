"""The instructions of ``bytes_intrinsics``, for kernels whose code may come from a library.

Each imports the compiler when a kernel that uses it is compiled, and not before.
"""

from functools import partial
from typing import Any

from airflow_provider_deltaforge.columns.compiled import Intrinsic


def _defined(name: str) -> Any:
    from airflow_provider_deltaforge.columns import bytes_intrinsics

    return getattr(bytes_intrinsics, name)


def _intrinsic(name: str) -> Any:
    return Intrinsic(partial(_defined, name))


pointer = _intrinsic("pointer")
bytes_at, int32s_at, int64s_at = map(_intrinsic, ("bytes_at", "int32s_at", "int64s_at"))
load_word, store_word = map(_intrinsic, ("load_word", "store_word"))
swapped, trailing_zeros = map(_intrinsic, ("swapped", "trailing_zeros"))
special_bits, copy_block = map(_intrinsic, ("special_bits", "copy_block"))
