"""Progress of runs and sweeps, read from the histories that they write."""
