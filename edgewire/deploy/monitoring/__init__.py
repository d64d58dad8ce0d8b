"""Tells how the server and the nodes are: metrics, rules of alerts, and a dashboard."""
