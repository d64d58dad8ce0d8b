"""Measures a server with many nodes: `python -m papers.benchmarks.devices.fleet CASE`."""
