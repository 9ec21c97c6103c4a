"""The Airflow plug-in: pages and endpoints."""
