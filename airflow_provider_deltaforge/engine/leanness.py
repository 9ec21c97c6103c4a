"""What a process of ours does not load: pyarrow would import pandas at its first array.

It only wants to know whether it was given one of pandas' own objects, which never happens here. In
every driver and every worker that costs more than a second of CPU time, and 50 MiB.
"""

import sys
from importlib.machinery import ModuleSpec

import pyarrow as pa


def leave_pandas_out() -> None:
    """Let pyarrow find no pandas when it looks for it; whoever imports it later has it.

    For processes that are ours alone, at their start: pyarrow looks only once. In a user's Spark
    session pandas' objects may well be given to pyarrow.
    """
    if "pandas" in sys.modules:
        return
    absent = _Absent()
    sys.meta_path.insert(0, absent)
    try:
        pa.array([])
    finally:
        sys.meta_path.remove(absent)


class _Absent:
    """A finder that hides pandas."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError(f"{name} is left out", name=name)
        return None
