"""Everything in a run besides its strategy: result files, checkpoints, nodes and shutdown."""
