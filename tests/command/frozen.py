"""Excludes all loaded objects from garbage collection; a process imports this module last.

Commands are forked from this process. They share its loaded objects, and no command examines these
objects again.
"""

import gc

from tests.quick_hydra import quicken

quicken()
gc.collect()
gc.freeze()
