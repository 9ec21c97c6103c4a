"""The kernels' machine code, loaded once where drivers are forked from."""

from airflow_provider_deltaforge.engine.leanness import stay_lean
from airflow_provider_deltaforge.sources.mysql import warm as mysql
from airflow_provider_deltaforge.sources.postgres import warm as postgres

stay_lean()
mysql.warm()
postgres.warm()
