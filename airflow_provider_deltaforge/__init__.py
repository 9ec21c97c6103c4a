"""DeltaForge: change data capture for teams that run Airflow and Spark."""

__version__ = "0.1.0"
