"""Code for both the server and the nodes: bundles of a message, and the lineage of a run."""
