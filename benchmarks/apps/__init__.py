"""Other people's apps: their bytes, their time, and both with the two lines."""
