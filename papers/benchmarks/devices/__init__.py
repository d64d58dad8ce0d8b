"""Benchmarks of real processes in network namespaces: bytes, round times, first replies."""
