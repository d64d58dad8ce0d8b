"""Freezes the garbage collector; imported last by the process from which commands are forked.

The forked commands share all loaded objects, and no command examines these objects again.
"""

import gc

from tests.quick_hydra import quicken

quicken()
gc.collect()
gc.freeze()
