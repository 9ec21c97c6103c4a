"""Sends dead letters again to the sinks that miss them. Begin at ``replay``."""
