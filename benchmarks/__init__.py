"""Measurements on real servers of this machine: ratios within one run, never timed tests."""
