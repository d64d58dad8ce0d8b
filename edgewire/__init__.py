"""EdgeWire: trains PyTorch models on edge devices, compresses every message and counts every byte.

A public name is imported on first use, so `import edgewire` loads neither torch nor Flower. The
folders client/, strategy/, compression/ and conf/ are subpackages. In a checkout and in an app's
bundle they lie beside this folder. The links in this folder are for type checkers, editors and
builds of wheels alone: imports, files of tracebacks and breakpoints are those of the real folders.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from edgewire.import_names import SubpackagesBeside

_HOMES = {  # public name -> its module
    "Codec": "compression.codec",
    "CompressedGrid": "compression.flower.server.compressed_grid",
    "CompressionMod": "compression.flower.node.mod",
    "Description": "compression.decoder",
    "Layout": "compression.layout",
    "PayloadError": "compression.base",
    "RunFailed": "command.exit",
    "Update": "compression.decoder",
    "decode": "compression.decoder",
    "decode_update": "compression.decoder",
    "describe": "compression.decoder",
    "load_model": "command.use",
    "make_codec": "compression.make",
    "names": "compression.registry",
    "option_fields": "compression.registry",
    "sweep": "command.python_api",
    "train": "command.python_api",
}
__all__ = list(_HOMES)

_beside = Path(__file__).parents[1]
if (_beside / "compression" / "codec.py").is_file():  # not so in a wheel
    sys.meta_path.insert(0, SubpackagesBeside(_beside))

if TYPE_CHECKING:  # imported on first use: torch and Flower take seconds
    from edgewire.command.exit import RunFailed as RunFailed
    from edgewire.command.python_api import sweep as sweep
    from edgewire.command.python_api import train as train
    from edgewire.command.use import load_model as load_model
    from edgewire.compression.base import PayloadError as PayloadError
    from edgewire.compression.codec import Codec as Codec
    from edgewire.compression.decoder import Description as Description
    from edgewire.compression.decoder import Update as Update
    from edgewire.compression.decoder import decode as decode
    from edgewire.compression.decoder import decode_update as decode_update
    from edgewire.compression.decoder import describe as describe
    from edgewire.compression.flower.node.mod import CompressionMod as CompressionMod
    from edgewire.compression.flower.server.compressed_grid import CompressedGrid as CompressedGrid
    from edgewire.compression.layout import Layout as Layout
    from edgewire.compression.make import make_codec as make_codec
    from edgewire.compression.registry import names as names
    from edgewire.compression.registry import option_fields as option_fields
else:

    def __getattr__(name):
        """Import a public name of this package on first use, and store it in the package."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            module = import_module(f"{__name__}.{_HOMES[name]}")
        except ModuleNotFoundError as error:
            if error.name != f"{__name__}.command":
                raise
            raise ImportError(
                f"edgewire.{name} needs EdgeWire's application; only its library is installed"
            ) from None
        value = globals()[name] = getattr(module, name)
        return value
