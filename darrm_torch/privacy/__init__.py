"""Privacy guarantees, and what several of them cost together."""
