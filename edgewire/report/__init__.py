"""Makes tables, curves and pages for people from the result files of runs."""
