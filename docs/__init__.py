"""The documentation pages, and the program that writes one of them from the code."""
