"""Lossless coders: one module each, found by the registry."""
