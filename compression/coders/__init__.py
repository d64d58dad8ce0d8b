"""Lossless coders, one module each; the registry imports all modules of this folder."""
