"""Drivers as pods of a Kubernetes cluster. Begin at ``backend``."""
