"""The command-line face."""
