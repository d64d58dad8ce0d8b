"""Model updates to bytes and back: sparsifier, quantizer, coder; no files, networks or models.

Each module here knows those before it alone: layout, stages, statistics; registry, which finds the
methods; header, own, envelope, the parts of a payload; payload, which decodes; codec, which
encodes; make, which builds a codec from names.
"""

from .codec import Codec
from .layout import Layout
from .make import make_codec
from .payload import Description, Update, decode, decode_update, describe
from .registry import names, option_fields
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
