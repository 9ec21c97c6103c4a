"""Airflow triggers: they poll the control record."""
