"""The Airflow plug-in: the page that shows pipelines, and the endpoints behind it."""
