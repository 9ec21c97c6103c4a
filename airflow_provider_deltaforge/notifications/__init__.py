"""Notifiers: what Airflow calls when a task or a DAG ended."""
