"""Compiles the kernels of the PostgreSQL source."""

from airflow_provider_deltaforge.sources.shared.precompile import precompile_shared


def precompile() -> None:
    """Compile what is not compiled yet, for stream and snapshot."""
    import numpy as np

    from airflow_provider_deltaforge.events.ids import id_key
    from airflow_provider_deltaforge.sources.postgres.positions import WalPosition, WalTxPositions
    from airflow_provider_deltaforge.sources.postgres.snapshot import copy_out, copy_rows
    from airflow_provider_deltaforge.sources.postgres.wal import framing_kernel
    from airflow_provider_deltaforge.sources.postgres.wal.decode_plans import WalDecodePlans
    from airflow_provider_deltaforge.sources.postgres.wal.decoder import decode_segment
    from airflow_provider_deltaforge.sources.postgres.wal.log_segment import ROW_COLUMNS, WalSegment

    none, data = np.zeros(0, np.int64), np.zeros(0, np.uint8)
    positions = WalTxPositions(WalPosition(0, "", 0), none, none, none, none)
    rows = np.zeros((0, ROW_COLUMNS), np.int64)
    framing_kernel.precompile()
    framing_kernel.place_of(np.full(1, -1, np.int64), 0)
    decode_segment(WalSegment(0, data, rows, WalDecodePlans(), positions, ""), id_key(""))
    copy_rows.precompile()
    copy_out.precompile()
    precompile_shared()
