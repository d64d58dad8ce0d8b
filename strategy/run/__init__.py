"""Everything in a run besides its strategy: records, checkpoints, nodes and shutdown."""
