"""One connection to the log, and everything from there to the checkpoint. Begin at ``lane``."""
