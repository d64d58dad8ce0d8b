"""Makes the folder `simulation/` importable as `edgewire_engine`, a name that no app uses.

An app may have a `simulation` module of its own. All imports within the folder are relative, so
`import edgewire_engine.grid` works once this file's parent folder is on `sys.path`. A spawned
worker has the folder on its own `sys.path`, too.
"""

from pathlib import Path

__path__ = [str(Path(__file__).parents[2])]
