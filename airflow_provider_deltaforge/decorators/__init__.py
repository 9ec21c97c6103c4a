"""Decorators of Airflow's TaskFlow."""
