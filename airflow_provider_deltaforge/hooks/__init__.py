"""The Airflow hook: a connection to a state store."""
