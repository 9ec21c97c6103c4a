"""The binary log: from received bytes to change batches. Begin at ``reader``."""
