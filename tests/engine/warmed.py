"""The kernels' machine code, loaded once where drivers are forked from."""

from airflow_provider_deltaforge.engine.leanness import leave_pandas_out
from airflow_provider_deltaforge.sources.mysql import warm as mysql
from airflow_provider_deltaforge.sources.postgres import warm as postgres

leave_pandas_out()
mysql.warm()
postgres.warm()
