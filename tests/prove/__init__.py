"""The long proofs: each area is one module here; what it finds goes to ``docs/proofs``."""
