"""Model updates to bytes and back: sparsifier, quantizer, coder; no files, networks or models."""

from compression.codec import Codec
from compression.layout import Layout
from compression.payload import Description, Update, decode, decode_update, describe
from compression.registry import make_codec, names, option_fields
from compression.stages import PayloadError

__all__ = [
    "Codec",
    "Description",
    "Layout",
    "PayloadError",
    "Update",
    "decode",
    "decode_update",
    "describe",
    "make_codec",
    "names",
    "option_fields",
]
