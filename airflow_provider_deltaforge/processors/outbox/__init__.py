"""Turn outbox rows and messages into the events an application meant."""
