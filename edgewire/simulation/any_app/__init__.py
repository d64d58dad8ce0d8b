"""Runs any Flower app, unchanged, on the local engine: `python -m edgewire.simulation PATH`."""
