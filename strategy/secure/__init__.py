"""Strategies of which the server sees only sums."""
