"""`papers.benchmarks.screening` times functions that it names as text, so they must exist."""

from papers.benchmarks.screening import PARTS


def test_the_timed_functions_exist():
    for places in PARTS.values():
        for where, name in places:
            assert callable(getattr(where, name)), name
