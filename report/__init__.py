"""From result files to what a person reads; knows nothing but the files."""
