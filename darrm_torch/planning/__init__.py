"""Which mechanism for which budget, and why."""
