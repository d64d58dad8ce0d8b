"""Imported last by the process that commands are forked from: they share all that it has loaded.

None of them goes through it once more to collect garbage.
"""

import gc

from tests.quick_hydra import quicken

quicken()
gc.collect()
gc.freeze()
