"""Benchmarks of speed and size. Each compares with a baseline or a target and prints JSON."""
