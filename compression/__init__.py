"""Model updates to bytes and back: sparsifier, quantizer, coder; no files, networks or models."""

from .codec import Codec
from .layout import Layout
from .payload import Description, Update, decode, decode_update, describe
from .registry import make_codec, names, option_fields
from .stages import PayloadError

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
