"""Watches a run in a browser: `python -m edgewire.report.live RUN` (docs/live.md)."""
