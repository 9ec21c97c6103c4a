"""Durable state: four primitives and one transaction that a fenced writer cannot make."""
