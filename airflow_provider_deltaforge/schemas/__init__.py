"""Table schemas: what sources know of a table, and decoders and encodings need."""
