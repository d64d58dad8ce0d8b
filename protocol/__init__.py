"""What both ends of a message need: bundles of a message with its objects, a run's lineage."""
