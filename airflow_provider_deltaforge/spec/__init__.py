"""The pipeline document: one YAML file, one pipeline."""
