"""Compiles the kernels that every source needs.

A lane does so itself before its first row. Done ahead, once for each installation, no pipeline has
to wait for it: ``deltaforge precompile``.
"""


def precompile_shared() -> None:
    """Compile the kernels that make the event ids of copied rows, and the JSON of every event."""
    import numpy as np

    from airflow_provider_deltaforge.columns import row_text_kernel
    from airflow_provider_deltaforge.events.ids import id_key, row_ids

    row_text_kernel.precompile()
    row_ids(id_key(""), np.zeros(0, np.uint8), np.zeros(1, np.int64))
