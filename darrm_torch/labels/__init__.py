"""Votes in, private labels out, everything charged."""
