"""EdgeWire's command; `python run.py --help` explains the configuration groups.

In Python: `from edgewire import sweep, train`.
"""

from edgewire.__main__ import main


def __getattr__(name: str) -> None:
    if name in ("RunFailed", "sweep", "train"):
        raise ImportError(f"run.{name} is called edgewire.{name}: `from edgewire import {name}`")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if __name__ == "__main__":
    main()
