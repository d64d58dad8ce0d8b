"""`python -m deploy.server`: Flower's SuperLink for real devices, and a gate before it."""

import sys

from deploy.server.server import main

sys.exit(main())
