"""Tables: reads files and DataFrames, learns their columns, and turns rows into a model's input."""
