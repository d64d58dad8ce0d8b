"""Benchmarks of Flower apps: bytes and time, with and without compression."""
