"""Trains one model over several nodes; each trains a segment, which is consecutive layers."""
