"""The local engine: an in-process Grid on a virtual clock, and its worker processes."""
