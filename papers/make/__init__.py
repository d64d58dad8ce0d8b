"""Pages of results: reads their definitions (YAML), fills in the numbers, draws the pictures."""
