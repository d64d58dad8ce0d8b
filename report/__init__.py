"""Reports for people, made from result files alone."""
