"""Where drivers are started, found again and ended. Begin at ``contract``."""
