"""Sparsifiers: one module each, found by the registry."""
