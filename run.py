"""EdgeWire's command; `python run.py --help` explains the configuration groups.

In Python: `from edgewire import sweep, train`.
"""

from edgewire.__main__ import main

if __name__ == "__main__":
    main()
