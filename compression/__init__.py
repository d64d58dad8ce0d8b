"""Model updates to bytes and back: sparsifier, quantizer, coder; no files, networks or models."""

from compression.layout import Layout
from compression.payload import Codec, Description, PayloadError, decode, describe
from compression.registry import make_codec, names, option_fields

__all__ = [
    "Codec",
    "Description",
    "Layout",
    "PayloadError",
    "decode",
    "describe",
    "make_codec",
    "names",
    "option_fields",
]
