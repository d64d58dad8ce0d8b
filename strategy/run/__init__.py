"""What surrounds a strategy in a run: its log, its checkpoints, its nodes, its end."""
