"""Code for both the server and the nodes: bundles of messages, and the lineage of resumed runs."""
