"""Pipeline training of one model that is cut into segments, each trained by one node."""
