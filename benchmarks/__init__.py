"""Measurements; run each with ``python -m benchmarks.NAME`` from the top of the repository."""
