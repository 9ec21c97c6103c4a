"""Compiles the kernels of the MySQL source."""

from airflow_provider_deltaforge.sources.shared.precompile import precompile_shared


def precompile() -> None:
    """Compile what is not compiled yet, for stream and snapshot."""
    from airflow_provider_deltaforge.sources.mysql.binlog import decoder
    from airflow_provider_deltaforge.sources.mysql.snapshot import text_rows_kernel

    decoder.precompile("")
    text_rows_kernel.precompile()
    precompile_shared()
