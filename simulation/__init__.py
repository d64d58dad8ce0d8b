"""Where a run takes place: the in-process Grid with its virtual clock, and Flower's Ray engine."""
