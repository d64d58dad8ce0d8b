"""The pages a person reads, and the program that writes one of them from the code."""
