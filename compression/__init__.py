"""Model updates to bytes and back: sparsifier, quantizer, coder; no files, networks or models.

Each module here knows those before it alone: layout, base, batchnorm; registry, which finds the
methods; wire_header, native_tensors, wire, the parts of a payload; decoder; codec, which encodes;
make, which builds a codec from names.

Names are imported when they are first asked for. Where this folder goes by the name `compression`,
the modules of Python 3.14's package of that name are found in it, too, and whoever wants one of
those must get no other module with it: `shutil` does, as it is being imported itself.
"""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

_HOMES = {
    "Codec": "codec",
    "Description": "decoder",
    "Layout": "layout",
    "PayloadError": "base",
    "Update": "decoder",
    "decode": "decoder",
    "decode_update": "decoder",
    "describe": "decoder",
    "make_codec": "make",
    "names": "registry",
    "option_fields": "registry",
}
__all__ = list(_HOMES)

if __name__ in sys.stdlib_module_names:
    __path__.append(os.path.join(os.path.dirname(os.__file__), __name__))

if TYPE_CHECKING:
    from .base import PayloadError as PayloadError
    from .codec import Codec as Codec
    from .decoder import Description as Description
    from .decoder import Update as Update
    from .decoder import decode as decode
    from .decoder import decode_update as decode_update
    from .decoder import describe as describe
    from .layout import Layout as Layout
    from .make import make_codec as make_codec
    from .registry import names as names
    from .registry import option_fields as option_fields
else:

    def __getattr__(name):
        """Return what this package offers under a name, and keep it."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
        globals()[name] = value
        return value
