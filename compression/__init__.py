"""Encodes model updates to bytes with a sparsifier, a quantizer and a coder, and decodes them.

The package uses no files, networks or models. Each module imports only modules that are earlier in
this list: layout, base, batchnorm, registry, wire_header, wire_natives, wire, decoder, codec, make.

A public name is imported on first use. Reason: the standard library of Python 3.14 also has a
package `compression`, and this folder hides it. So the standard library imports the modules of its
own package through this one, for example while `shutil` is imported. Such an import must not load
any other module of this project.
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

if TYPE_CHECKING:  # at run time a name is imported on first use, see the module's docstring
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
        """Import a public name of this package on first use, and store it in the package."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
        globals()[name] = value
        return value
