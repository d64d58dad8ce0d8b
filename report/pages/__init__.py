"""Pages of results: what their definitions (YAML) say, and how they are filled and drawn."""
