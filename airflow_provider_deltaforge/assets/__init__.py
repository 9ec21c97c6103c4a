"""Airflow assets: the tables that a pipeline delivers."""
