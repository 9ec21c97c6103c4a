"""The engine: runs one pipeline. Only engine.spark knows Spark."""
