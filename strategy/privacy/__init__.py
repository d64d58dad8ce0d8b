"""Differential privacy at the server: the accountant, and the ledger of what nodes release."""
