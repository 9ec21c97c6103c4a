"""The kernels' machine code, loaded once where drivers are forked from."""

from airflow_provider_deltaforge.engine.base.process_memory import stay_lean
from airflow_provider_deltaforge.sources.mysql import precompile as mysql
from airflow_provider_deltaforge.sources.postgres import precompile as postgres

stay_lean()
mysql.precompile()
postgres.precompile()
