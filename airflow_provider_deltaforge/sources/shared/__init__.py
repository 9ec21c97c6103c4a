"""What all sources do alike."""
