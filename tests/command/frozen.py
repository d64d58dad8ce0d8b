"""Imported last by the process from which commands are forked: it freezes the garbage collector.

The forked commands share all loaded objects, and none of them collects these again.
"""

import gc

from tests.quick_hydra import quicken

quicken()
gc.collect()
gc.freeze()
