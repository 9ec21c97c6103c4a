"""Buttons on a task in Airflow's UI."""
