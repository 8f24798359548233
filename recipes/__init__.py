"""Worked examples: run each with ``python -m recipes.NAME`` from the top of the repository."""
