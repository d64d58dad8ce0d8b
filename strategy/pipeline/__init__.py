"""Pipeline training of one model cut over nodes: schedule, placement of segments, messages."""
