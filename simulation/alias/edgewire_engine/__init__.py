"""The folder `simulation/` under a name that no app has: an app may have a `simulation` of its own.

All imports in there are relative, so `import edgewire_engine.grid` is all it takes, once this
file's parent folder is on `sys.path`; a spawned worker finds it on its own `sys.path` as well.
"""

from pathlib import Path

__path__ = [str(Path(__file__).parents[2])]
