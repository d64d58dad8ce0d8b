"""Makes the folder `edgewire/simulation/` importable as `edgewire_engine`, a name that no app uses.

An app may also have a module with the name `simulation`. All imports within the folder are
relative, so `import edgewire_engine.grid` works once the folder `alias/` is on `sys.path`. A
spawned worker has `alias/` on its `sys.path`, too.
"""

from pathlib import Path

__path__ = [str(Path(__file__).parents[2])]
