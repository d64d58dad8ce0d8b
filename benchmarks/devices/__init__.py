"""Real processes over thin lines, in network namespaces: rounds, bytes, first replies."""
