"""Watches a run in a browser: `python -m report.live RUN`; docs/live.md explains the page."""
