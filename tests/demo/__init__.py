"""The whole way in two minutes: a real database, Airflow, Spark, and a file to look at."""
