"""Differential privacy at the server: accountant, ledger of what nodes release, noisy rounds."""
