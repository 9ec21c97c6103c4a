"""Compiling the kernels of stream and snapshot."""


def warm() -> None:
    """Compile what is not compiled yet."""
    import numpy as np

    from airflow_provider_deltaforge.events.ids import id_key, row_ids
    from airflow_provider_deltaforge.sources.postgres import copy_rows, framing
    from airflow_provider_deltaforge.sources.postgres.chunk import ROW_COLUMNS, WalChunk
    from airflow_provider_deltaforge.sources.postgres.decoder import decode_chunk
    from airflow_provider_deltaforge.sources.postgres.plans import PlanSet
    from airflow_provider_deltaforge.sources.postgres.positions import TxPositions, WalPosition

    none, data = np.zeros(0, np.int64), np.zeros(0, np.uint8)
    positions = TxPositions(WalPosition(0, "", 0), none, none, none, none)
    rows = np.zeros((0, ROW_COLUMNS), np.int64)
    framing.warm()
    decode_chunk(WalChunk(0, data, rows, PlanSet(), positions, ""), id_key(""))
    copy_rows.warm()
    row_ids(id_key(""), data, np.zeros(1, np.int64))
