"""Imported last by the process that commands are forked from: they share all that it has loaded.

None of them goes through it once more to collect garbage.
"""

import gc

import yaml

yaml.SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # as in tests/conftest.py
gc.collect()
gc.freeze()
