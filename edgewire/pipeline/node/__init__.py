"""Trains one segment of a model that is cut into segments, one segment per node."""
