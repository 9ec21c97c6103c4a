"""Airflow operators: thin, deferrable, never the owner of the truth."""
