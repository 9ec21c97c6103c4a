"""One SELECT over each batch, run by DuckDB."""
