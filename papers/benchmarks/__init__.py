"""Benchmarks of speed and size. Each one compares with a baseline or a target, and prints JSON."""
