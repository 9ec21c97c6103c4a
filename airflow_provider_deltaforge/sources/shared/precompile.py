"""Compiles the kernels that every source needs.

A lane does so itself before its first row. Done ahead, once for each installation, no pipeline has
to wait for it: ``deltaforge precompile``.
"""


def precompile_shared() -> None:
    """Compile what makes event ids and JSON, spreads events over shards, and compares rows."""
    import numpy as np
    import pyarrow as pa

    from airflow_provider_deltaforge.columns import row_text_kernel
    from airflow_provider_deltaforge.columns.murmur2_kernel import partitions_of
    from airflow_provider_deltaforge.columns.row_hash_kernel import row_checksums, text_checksums
    from airflow_provider_deltaforge.events.ids import id_key, made_ids, row_ids

    row_text_kernel.precompile()
    partitions_of(pa.array([b"1"], pa.binary()), 1)
    text_checksums(pa.array([b"1"], pa.binary()))
    row_checksums(pa.array([b'{"id":1}'], pa.binary()))
    row_ids(id_key(""), np.zeros(0, np.uint8), np.zeros(1, np.int64))
    ids, numbers, made = np.zeros((0, 16), np.uint8), np.zeros(0, np.int32), np.zeros(0, np.bool_)
    made_ids(id_key(""), ids, numbers, made, ids.copy())
